//! What those see of a server who only look at it, such as a page of metrics.

use super::{Server, ServerStats, jobs::Jobs};
use crate::{
    core::session::status::{JobStatus, TableServerStatus},
    table::TableService,
    transport::stats::Moved,
};
use std::{
    fmt,
    net::SocketAddr,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

/// A server, for those that only look at it: it ends as if this was not there.
#[derive(Clone)]
pub struct ServerView {
    jobs: Weak<Jobs>,
    tables: Option<Weak<TableService>>,
    stop: Arc<AtomicBool>,
    address: SocketAddr,
    token: Arc<str>,
}

/// How a server stands at one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerFigures {
    /// What it has done so far, without what has moved in jobs that are left out.
    pub stats: ServerStats,
    /// The jobs that it serves.
    pub jobs: Vec<ServedFigures>,
    /// How many jobs are left out, because other threads have their engines for 0.4 s on end.
    pub busy: usize,
}

/// A job, as one of its reducers sees it at one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServedFigures {
    /// Its number.
    pub job: u64,
    /// How many workers it is said to have.
    pub world: u32,
    /// Where its rank 0 listens, as far as the reducer was told: that one knows all members.
    pub hub: Option<String>,
    /// How it stands here.
    pub status: JobStatus,
    /// Payload bytes that were exchanged with its workers.
    pub moved: Moved,
    /// Bytes of staging memory that operations have now.
    pub staged: u64,
    /// Bytes of staging memory that there are.
    pub staging: u64,
}

impl Server {
    /// How this server stands, for those that only look at it.
    pub fn view(&self) -> ServerView {
        ServerView {
            jobs: Arc::downgrade(&self.jobs),
            tables: self.tables.as_ref().map(Arc::downgrade),
            stop: self.stop.clone(),
            address: self.address,
            token: self.token.clone(),
        }
    }
}

impl ServerView {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The token of its jobs, with which their members are asked; `None` if there is none.
    pub fn token(&self) -> Option<&str> {
        Some(&*self.token).filter(|token| !token.is_empty())
    }

    /// Whether it takes jobs: it has neither ended nor been told to.
    pub fn is_serving(&self) -> bool {
        self.jobs.strong_count() > 0 && !self.stop.load(Ordering::SeqCst)
    }

    /// How it stands; `None` if it has ended.
    pub fn figures(&self) -> Option<ServerFigures> {
        Some(self.jobs.upgrade()?.figures())
    }

    /// How its tables stand; `None` if it keeps none, or was busy all the time.
    pub fn tables(&self) -> Option<TableServerStatus> {
        self.tables.as_ref()?.upgrade()?.status()
    }
}

impl fmt::Debug for ServerView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerView").field("address", &self.address).finish_non_exhaustive()
    }
}
