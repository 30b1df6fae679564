//! Rank 0 cannot use its settings: it tells the ranks that wait for it, so that they need not wait until their timeouts.

use super::{
    acceptor::Acceptor,
    greet,
    hub_address::{self, OpenHub},
};
use crate::{
    Error, ErrorKind,
    config::Config,
    core::session::{
        Refusal,
        handshake::{Policy, Purpose, Versions},
    },
};
use std::{
    collections::BTreeSet,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

/// How long rank 0 stays for the others, which start at about the same time.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);

/// Tells the other ranks that rank 0 does not come, and why; returns when all have heard it, or after five seconds. Does
/// nothing on other ranks, and for errors that are no setting's.
pub(crate) fn tell(config: &Config, why: &Error) {
    let ErrorKind::Config { setting, problem } = why.kind() else { return };
    if config.rank != 0 || config.world < 2 {
        return;
    }
    let refusal = Refusal::Unusable { setting: setting.clone(), problem: shortened(problem) };
    let what = format_args!("{setting}: {problem}; this rank waits for the others, to tell them");
    crate::log::warn("rank 0", what);
    // Where nobody can be accepted the others run into their timeouts.
    let _unsent = answer(&config.bare(), &refusal, Instant::now() + PATIENCE.min(config.waits.timeout));
}

/// A text that fits a refusal: what is wrong stands at its beginning, and what to do at its end.
fn shortened(text: &str) -> String {
    const HEAD: usize = 80;
    const TAIL: usize = 150;
    let characters: Vec<char> = text.chars().collect();
    if text.len() <= HEAD + TAIL {
        return text.to_owned();
    }
    let part = |part: &[char]| part.iter().collect::<String>();
    let tail = characters.len().saturating_sub(TAIL);
    format!("{} ... {}", part(&characters[..HEAD.min(tail)]), part(&characters[tail..]))
}

/// Answers every rank that comes.
fn answer(config: &Config, refusal: &Refusal, deadline: Instant) -> crate::Result<()> {
    let OpenHub { listener, token, .. } = hub_address::open_hub(config)?;
    let policy = Policy { versions: Versions::CURRENT, job: None, world: None };
    let mut acceptor = Acceptor::new("rank 0", listener, token.unwrap_or_default().as_bytes(), policy)
        .map_err(|error| Error::io("preparing the port", error))?;
    let (sender, heard) = mpsc::channel();
    let mut reached = BTreeSet::new();
    while reached.len() + 1 < config.world as usize && Instant::now() < deadline {
        for (caller, claim) in acceptor.serve() {
            let (refusal, sender) = (refusal.clone(), sender.clone());
            acceptor.spawn_handler(caller, claim, move |mut stream, claim| {
                let hello = *claim.hello();
                greet::refuse(&mut stream, claim, &refusal);
                if hello.purpose == Purpose::Join {
                    // Nobody counts any more when all have heard it.
                    let _uncounted = sender.send(hello.identity.rank);
                }
                Ok(())
            });
        }
        reached.extend(heard.try_iter());
        thread::sleep(PAUSE);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::{Communicator, Config, ErrorKind, Rendezvous};
    use std::time::{Duration, Instant};

    #[test]
    fn a_setting_that_rank_0_cannot_use_reaches_all_ranks_at_once() {
        let meet = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let config = |rank| Config::new(rank, 3, Rendezvous::Tcp(meet.clone())).token("a token of the tests");
        let began = Instant::now();
        let errors: Vec<_> = std::thread::scope(|scope| {
            let others = [1, 2].map(|rank| {
                let config = config(rank);
                scope.spawn(move || Communicator::connect(config).unwrap_err())
            });
            let wrong = config(0).reducers(vec!["nowhere".to_owned()]);
            let own = Communicator::connect(wrong).unwrap_err();
            others.into_iter().map(|rank| rank.join().unwrap()).chain([own]).collect()
        });
        for error in errors {
            assert!(
                matches!(error.kind(), ErrorKind::Config { setting, .. } if setting == "HERRINGBONE_REDUCERS"),
                "{error}"
            );
            assert!(error.to_string().contains("\"nowhere\" is not host:port"), "{error}");
        }
        assert!(began.elapsed() < Duration::from_secs(60), "nobody ran into a timeout");
    }
}
