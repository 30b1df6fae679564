//! The meeting place of a world's ranks: rank 0 listens, the others learn its address, and all know one secret.
//!
//! A token that is set never travels. If none is set and a store is shared, rank 0 draws a key for this job alone, and
//! the store holds that key. A process that can read the store can join this job, and no other.

use super::greet;
use crate::{
    Error, ErrorKind, Result,
    config::{Config, Rendezvous, check_exposure, on_the_way_to, resolve},
    rendezvous::{Store, StoreError},
};
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener},
    time::Instant,
};

/// The store's key for rank 0's address and, on a line of its own, where the secret comes from.
const HUB_KEY: &str = "herringbone/hub";

/// Where the job's secret comes from, as the store tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Secret {
    /// There is none: only loopback is used.
    None,
    /// Every rank has the token in its own settings.
    Configured,
    /// A key that was drawn for this job.
    OfJob(String),
}

const CONFIGURED: &str = "token";
const OF_JOB: &str = "key ";

impl Secret {
    fn write(&self) -> String {
        match self {
            Secret::None => String::new(),
            Secret::Configured => CONFIGURED.to_owned(),
            Secret::OfJob(key) => format!("{OF_JOB}{key}"),
        }
    }

    fn read(text: &str) -> Option<Self> {
        match text {
            "" => Some(Secret::None),
            CONFIGURED => Some(Secret::Configured),
            text => text.strip_prefix(OF_JOB).map(|key| Secret::OfJob(key.to_owned())),
        }
    }

    /// The secret of a rank whose own settings have `token`.
    fn over(self, token: Option<String>) -> Result<Option<String>, ErrorKind> {
        let differ = |problem: &str| ErrorKind::Auth {
            problem: problem.to_owned(),
            hint: "set HERRINGBONE_TOKEN (or HERRINGBONE_TOKEN_FILE) to the same secret text for every worker, or for none",
        };
        match (self, token) {
            (Secret::None, None) => Ok(None),
            (Secret::Configured, Some(token)) => Ok(Some(token)),
            (Secret::OfJob(key), None) => Ok(Some(key)),
            (Secret::Configured, None) => Err(differ("rank 0 has a token, and this rank has none")),
            (_, Some(_)) => Err(differ("this rank has a token, and rank 0 has none")),
        }
    }
}

/// Where rank 0 listens, and the secret that counts.
pub(super) struct OpenHub {
    pub(super) listener: TcpListener,
    pub(super) address: SocketAddr,
    pub(super) token: Option<String>,
}

/// Listens as rank 0. At an address that all ranks know rank 0 listens whatever the
/// interface is: it calls for data links and is not called.
pub(super) fn open_hub(config: &Config) -> Result<OpenHub> {
    let (wanted, secret, store) = match &config.rendezvous {
        Rendezvous::Tcp(address) => (resolve("HERRINGBONE_STORE", address)?, Secret::None, None),
        Rendezvous::Store { store, host } => {
            let secret = match &config.token {
                Some(_) => Secret::Configured,
                // Reducers could not know a key that is made up here.
                None if !config.reducers.is_empty() => Secret::None,
                None => Secret::OfJob(generated_key()?),
            };
            let usual = own_address(host.as_deref())?;
            let chosen = config.local_address(usual).map_err(|error| error.at(0))?;
            (SocketAddr::new(chosen.unwrap_or(usual), 0), secret, Some(store))
        }
    };
    let written = secret.write();
    let token = match secret {
        Secret::OfJob(key) => Some(key),
        Secret::None | Secret::Configured => config.token.clone(),
    };
    check_exposure(wanted, token.as_deref()).map_err(|error| error.at(0))?;
    let listener = TcpListener::bind(wanted).map_err(|error| {
        let hint = "is the port taken, perhaps by a group that this process has not closed, or is the address another host's? \
                    Rank 0 listens there";
        Error::rendezvous(format_args!("rank 0 cannot listen at {wanted}: {error}; {hint}")).at(0)
    })?;
    let address = listener.local_addr().map_err(|error| Error::io("asking for the port", error))?;
    if let Some(store) = store {
        let value = format!("{address}\n{written}");
        store.set(HUB_KEY, value.as_bytes()).map_err(|error| store_failed(config, &error))?;
    }
    Ok(OpenHub { listener, address, token })
}

fn store_failed(config: &Config, error: &StoreError) -> Error {
    Error::rendezvous(format_args!("rank 0's address did not get through the store: {error}")).at(config.rank)
}

fn generated_key() -> Result<String> {
    let mut bytes = [0; 32];
    greet::random(&mut bytes).map_err(|error| Error::io("drawing a key", error))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// This host's address on the way to `host`; loopback if there is none.
fn own_address(host: Option<&str>) -> Result<IpAddr> {
    host.map_or(Ok(IpAddr::V4(Ipv4Addr::LOCALHOST)), on_the_way_to)
}

/// Where rank 0 is, and the secret that counts.
pub(super) fn find_hub(config: &Config, deadline: Instant) -> Result<(String, Option<String>)> {
    match &config.rendezvous {
        Rendezvous::Tcp(address) => {
            let there = resolve("HERRINGBONE_STORE", address)?;
            check_exposure(there, config.token.as_deref()).map_err(|error| error.at(config.rank))?;
            Ok((address.clone(), config.token.clone()))
        }
        Rendezvous::Store { store, .. } => through_store(config, &**store, deadline),
    }
}

fn through_store(config: &Config, store: &dyn Store, deadline: Instant) -> Result<(String, Option<String>)> {
    let left = deadline.saturating_duration_since(Instant::now());
    let value = store.get(HUB_KEY, left).map_err(|error| match error {
        StoreError::Timeout => {
            Error::rendezvous("rank 0 did not come in time; look at its log").at(config.rank)
        }
        error => store_failed(config, &error),
    })?;
    let text = String::from_utf8(value).unwrap_or_default();
    let nonsense =
        || Error::rendezvous("the store holds something else under herringbone/hub").at(config.rank);
    let (address, secret) = text.split_once('\n').ok_or_else(nonsense)?;
    let secret = Secret::read(secret).ok_or_else(nonsense)?;
    let token = secret.over(config.token.clone()).map_err(|kind| Error::new(kind).at(config.rank))?;
    Ok((address.to_owned(), token))
}
