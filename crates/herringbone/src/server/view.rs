//! How a server stands, for code that only looks at it, such as a page of metrics.

use super::jobs::{Jobs, ServerFigures};
use crate::{core::session::status::TableServerStatus, observe::Sink, table::TableService};
use std::{
    fmt,
    net::SocketAddr,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

/// A server, for observers. It does not keep the server from ending.
#[derive(Clone)]
pub struct ServerView {
    jobs: Weak<Jobs>,
    tables: Option<Weak<TableService>>,
    stop: Arc<AtomicBool>,
    address: SocketAddr,
    token: Arc<str>,
}

impl ServerView {
    /// Of a server with these parts.
    pub(super) fn new(
        jobs: &Arc<Jobs>,
        tables: Option<&Arc<TableService>>,
        stop: &Arc<AtomicBool>,
        address: SocketAddr,
        token: &Arc<str>,
    ) -> Self {
        let (jobs, tables) = (Arc::downgrade(jobs), tables.map(Arc::downgrade));
        Self { jobs, tables, stop: stop.clone(), address, token: token.clone() }
    }

    /// The address where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The token of its jobs, with which their members are asked; `None` if there is none.
    pub fn token(&self) -> Option<&str> {
        Some(&*self.token).filter(|token| !token.is_empty())
    }

    /// Whether it takes jobs: it has neither ended nor been asked to end.
    pub fn is_serving(&self) -> bool {
        self.jobs.strong_count() > 0 && !self.stop.load(Ordering::SeqCst)
    }

    /// Makes each later job report its events here to a sink. `make` is given the job's number.
    pub fn listen(&self, make: impl Fn(u64) -> Box<dyn Sink> + Send + Sync + 'static) {
        if let Some(jobs) = self.jobs.upgrade() {
            jobs.listen(Box::new(make));
        }
    }

    /// How it stands; `None` if it has ended.
    pub fn figures(&self) -> Option<ServerFigures> {
        Some(self.jobs.upgrade()?.figures())
    }

    /// The status of its tables; `None` if it keeps none, or was busy all the time.
    pub fn tables(&self) -> Option<TableServerStatus> {
        self.tables.as_ref()?.upgrade()?.status()
    }
}

impl fmt::Debug for ServerView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerView").field("address", &self.address).finish_non_exhaustive()
    }
}
