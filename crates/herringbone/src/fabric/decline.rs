//! A rank cannot use its settings: it tells the ranks that wait for it, so that they need not wait until their timeouts.

use super::{
    acceptor::Acceptor,
    enter::enter,
    greet::{self, GreetError},
    hub_address::{self, OpenHub},
};
use crate::{
    Error, ErrorKind,
    config::Config,
    core::session::{
        Refusal, Role,
        control::Message,
        handshake::{Hello, Identity, Policy, Purpose, Versions},
    },
};
use std::{
    collections::BTreeSet,
    net::TcpListener,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

/// How long rank 0 stays for the others, which start at about the same time.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);

/// Tells the other ranks that this one does not come, and why: rank 0 those that call it, another rank rank 0, which passes it on.
/// Returns when all have heard it, or after five seconds. Does nothing for errors that are no setting's.
pub(crate) fn tell(config: &Config, why: &Error) {
    let ErrorKind::Config { setting, problem } = why.kind() else { return };
    if config.world < 2 {
        return;
    }
    let (rank, setting, problem) = (config.rank, setting.clone(), shortened(problem));
    let others = if rank == 0 { "the others" } else { "rank 0" };
    let what = format_args!("{setting}: {problem}; this rank waits for {others}, to tell it");
    crate::log::warn(&format!("rank {rank}"), what);
    let bare = config.bare();
    // Where nobody is reached the others run into their timeouts.
    let _untold = match rank {
        0 => answer_all(&bare, &Refusal::Unusable { setting, problem }),
        _ => tell_rank_0(&bare, Refusal::UnusableAt { rank, setting, problem }),
    };
}

/// Until when the others are waited for.
fn deadline(config: &Config) -> Instant {
    Instant::now() + PATIENCE.min(config.waits.timeout)
}

fn tell_rank_0(config: &Config, refusal: Refusal) -> crate::Result<()> {
    let incarnation = greet::random_number().map_err(|error| Error::io("drawing a random number", error))?;
    let identity =
        Identity { role: Role::Worker, job: 0, rank: config.rank, world: config.world, incarnation };
    let hello = Hello { identity, purpose: Purpose::Join, versions: Versions::CURRENT };
    let (mut stream, mut channel, (hub, _)) = enter(config, hello, deadline(config))?;
    let untold = |error: GreetError| error.at(&format!("rank 0 at {hub}")).at(config.rank);
    greet::send(&mut stream, &mut channel, &Message::Refuse(refusal)).map_err(untold)
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

/// Answers every rank that comes, as rank 0.
fn answer_all(config: &Config, refusal: &Refusal) -> crate::Result<()> {
    let OpenHub { listener, token, .. } = hub_address::open_hub(config)?;
    let policy = Policy { versions: Versions::CURRENT, job: None, world: None };
    let acceptor = Acceptor::new("rank 0", listener, token.unwrap_or_default().as_bytes(), policy)
        .map_err(|error| Error::io("preparing the port", error))?;
    answer(acceptor, config, refusal, BTreeSet::new(), Vec::new);
    Ok(())
}

/// Answers every rank that comes, as rank 0, until all have heard it: those in `heard_by`, those that are answered here, and those
/// that `also_refused` returns, which is called again and again.
pub(super) fn answer(
    mut acceptor: Acceptor<TcpListener>,
    config: &Config,
    refusal: &Refusal,
    mut heard_by: BTreeSet<u32>,
    mut also_refused: impl FnMut() -> Vec<u32>,
) {
    let deadline = deadline(config);
    let (sender, heard) = mpsc::channel();
    heard_by.remove(&0);
    while heard_by.len() + 1 < config.world as usize && Instant::now() < deadline {
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
        heard_by.extend(heard.try_iter().chain(also_refused()));
        thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use crate::{Communicator, Config, ErrorKind, Rendezvous};
    use std::time::{Duration, Instant};

    /// A rank that cannot use its reducers' addresses: all three get its error, long before any timeout.
    fn all_hear_of_what_is_wrong_at(wrong: u32) {
        let meet = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let config = |rank| Config::new(rank, 3, Rendezvous::Tcp(meet.clone())).token("a token of the tests");
        let began = Instant::now();
        let errors: Vec<_> = std::thread::scope(|scope| {
            let ranks = [0, 1, 2].map(|rank| {
                let config = match rank == wrong {
                    true => config(rank).reducers(vec!["nowhere".to_owned()]),
                    false => config(rank),
                };
                scope.spawn(move || Communicator::connect(config).unwrap_err())
            });
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
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

    #[test]
    fn a_setting_that_a_rank_cannot_use_reaches_all_ranks_at_once() {
        (0..3).for_each(all_hear_of_what_is_wrong_at);
    }
}
