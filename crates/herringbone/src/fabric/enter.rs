//! The way to rank 0: a connection that has proved itself, which is tried again while rank 0 is not there.

use super::{
    dial,
    greet::{self, GreetError, Stream},
    hub_address,
};
use crate::{
    Result,
    config::{Config, Rendezvous},
    core::session::{
        Role,
        control::ControlChannel,
        handshake::{Expected, Hello},
    },
};
use std::{
    net::TcpStream,
    time::{Duration, Instant},
};

const PAUSE: Duration = Duration::from_millis(50);
/// After how long a rank says for whom it waits.
const WORTH_A_WARNING: Duration = Duration::from_secs(10);

/// What a rank says once, if it waits for long.
pub(super) struct OneWarning(Option<u32>);

impl OneWarning {
    pub(super) fn of(rank: u32) -> Self {
        Self(Some(rank))
    }

    pub(super) fn say_after(&mut self, began: Instant, what: impl FnOnce() -> String) {
        if began.elapsed() >= WORTH_A_WARNING
            && let Some(rank) = self.0.take()
        {
            crate::log::warn(&format!("rank {rank}"), what());
        }
    }
}

/// A connection to rank 0 that speaks, where that was, and the secret that counts.
pub(super) type HubConnection = (TcpStream, ControlChannel, (String, Option<String>));

/// Connects to rank 0, trying again while it is not there. A store may at first have what a process before this rank 0 has left
/// there, so each attempt asks it again.
pub(super) fn enter(config: &Config, hello: Hello, deadline: Instant) -> Result<HubConnection> {
    let (mut hub, mut token) = hub_address::find_hub(config, deadline)?;
    let (mut warning, began) = (OneWarning::of(config.rank), Instant::now());
    loop {
        let expected = Expected { role: Role::Worker, rank: Some(0), incarnation: None };
        let secret = token.as_deref().unwrap_or_default().as_bytes();
        let attempt = dial::dial(&hub, None, |_| Ok(())).and_then(|mut stream| {
            let channel = greet::channel(greet::greet(&mut stream, hello, expected, secret)?);
            stream.limit(greet::DEADLINE)?;
            Ok((stream, channel))
        });
        match attempt {
            Ok((stream, channel)) => return Ok((stream, channel, (hub, token))),
            Err(error) if !error.may_pass() || Instant::now() + PAUSE >= deadline => {
                let unreachable = matches!(error, GreetError::Io(_));
                let whom =
                    format!("rank 0 at {hub}{}", if unreachable { " (does it run there?)" } else { "" });
                return Err(error.at(&whom).at(config.rank));
            }
            Err(error) => {
                let what =
                    || format!("no process answers as rank 0 at {hub} yet ({error}); this rank keeps trying");
                warning.say_after(began, what);
                std::thread::sleep(PAUSE);
            }
        }
        if matches!(config.rendezvous, Rendezvous::Store { .. }) {
            (hub, token) = hub_address::find_hub(config, deadline)?;
        }
    }
}
