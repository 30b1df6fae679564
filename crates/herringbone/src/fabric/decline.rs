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
        formation::{Decline, JobName},
        handshake::{Claim, Hello, Identity, Policy, Purpose, Versions},
    },
};
use std::{
    collections::BTreeSet,
    fmt,
    net::{TcpListener, TcpStream},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

/// How long rank 0 stays for the others, which start at about the same time.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);

/// Which meeting of a job's ranks it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meeting {
    /// The job has not run yet. If a rank cannot use its settings, it does not start.
    First,
    /// The job has run before, and a process that cannot use its settings does not end it: another one may come in its place.
    /// Ranks may have left the world before just now: until rank 0 has heard of that, it takes them for second processes.
    Again,
}

/// A rank has a setting that it cannot use, and does not come.
pub(super) struct Declined {
    pub(super) rank: u32,
    /// Where it called from.
    from: String,
    decline: Decline,
}

impl Declined {
    /// What all ranks of the job with the names `job` are told because of it, which then does not start.
    ///
    /// # Errors
    /// If it does not end the meeting: the rank, and what is in its way. The log has it, too.
    pub(super) fn end_of(self, meeting: Meeting, job: &[JobName]) -> Result<Refusal, (u32, String)> {
        let Self { rank, decline, .. } = &self;
        if let Err(refusal) = JobName::check(*rank, job, &decline.job) {
            crate::log::warn("rank 0", format_args!("rank {rank} was refused: {refusal}"));
            return Err((*rank, format!("was refused: {refusal}")));
        }
        if meeting == Meeting::Again {
            self.warn();
            return Err((*rank, self.to_string()));
        }
        let (setting, problem) = (decline.setting.clone(), decline.problem.clone());
        Ok(Refusal::UnusableAt { rank: *rank, setting, problem })
    }

    /// Logs it, for a job that continues without that process.
    fn warn(&self) {
        let Self { rank, from, .. } = self;
        let what =
            format_args!("rank {rank} at {from} {self}; the job waits for another process in its place");
        crate::log::warn("rank 0", what);
    }
}

impl fmt::Display for Declined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot use {}: {}", self.decline.setting, self.decline.problem)
    }
}

/// Lets a rank say that it does not come.
pub(super) fn receive(mut stream: TcpStream, claim: Claim, own: Identity) -> Result<Declined, GreetError> {
    let (from, caller) = (stream.peer_addr()?.to_string(), claim.hello().identity);
    let mut channel = greet::channel(greet::welcome(&mut stream, claim, own)?);
    match greet::receive(&mut stream, &mut channel, Instant::now() + greet::DEADLINE)? {
        Message::Decline(decline) => Ok(Declined { rank: caller.rank, from, decline }),
        _ => Err(GreetError::Protocol("it sent no reason why it does not come")),
    }
}

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
        _ => tell_rank_0(&bare, Decline { job: bare.job.clone(), setting, problem }),
    };
}

/// Until when the others are waited for.
fn deadline(config: &Config) -> Instant {
    Instant::now() + PATIENCE.min(config.waits.timeout)
}

fn tell_rank_0(config: &Config, decline: Decline) -> crate::Result<()> {
    let incarnation = greet::random_number().map_err(|error| Error::io("drawing a random number", error))?;
    let identity =
        Identity { role: Role::Worker, job: 0, rank: config.rank, world: config.world, incarnation };
    let hello = Hello { identity, purpose: Purpose::Decline, versions: Versions::CURRENT };
    let (mut stream, mut channel, (hub, _)) = enter(config, hello, deadline(config))?;
    let untold = |error: GreetError| error.at(&format!("rank 0 at {hub}")).at(config.rank);
    greet::send(&mut stream, &mut channel, &Message::Decline(decline)).map_err(untold)
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
                if matches!(hello.purpose, Purpose::Join | Purpose::Decline) {
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
    use crate::{
        Communicator, Config, Error, ErrorKind, Rendezvous,
        status::{self, Activity},
    };
    use std::{
        thread,
        time::{Duration, Instant},
    };

    const TOKEN: &str = "a token of the tests";

    /// Where ranks may meet.
    fn free_place() -> String {
        std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
    }

    fn of_two(rank: u32, meet: &str) -> Config {
        Config::new(rank, 2, Rendezvous::Tcp(meet.to_owned())).token(TOKEN)
    }

    /// A process whose setting cannot be used.
    fn decline(config: Config) -> Error {
        Communicator::connect(config.reducers(vec!["nowhere".to_owned()])).unwrap_err()
    }

    fn job_of_two(meet: &str) -> [Communicator; 2] {
        thread::scope(|scope| {
            [0, 1]
                .map(|rank| scope.spawn(move || Communicator::connect(of_two(rank, meet)).unwrap()))
                .map(|rank| rank.join().unwrap())
        })
    }

    /// The sizes of a job's two ends. Rank 0 leaves last: it would wait for the other one.
    fn sizes_at_the_end_of(first: Communicator, second: Communicator) -> [u32; 2] {
        let sizes = [first.size(), second.size()];
        drop(second);
        sizes
    }

    fn wait_until_it_forms(meet: &str) {
        while !status::ask(meet, Some(TOKEN), None, Duration::from_secs(1))
            .is_ok_and(|answer| matches!(answer.status.activity, Activity::Forms { .. }))
        {
            thread::sleep(super::PAUSE);
        }
    }

    /// A rank that cannot use its reducers' addresses: all three get its error, long before any timeout.
    fn all_hear_of_what_is_wrong_at(wrong: u32) {
        let meet = free_place();
        let config = |rank| Config::new(rank, 3, Rendezvous::Tcp(meet.clone())).token(TOKEN);
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

    #[test]
    fn a_newcomer_that_cannot_use_a_setting_does_not_end_a_job_that_has_run() {
        let meet = free_place();
        let [first, second] = job_of_two(&meet);
        drop(second);
        assert!(matches!(decline(of_two(1, &meet)).kind(), ErrorKind::Config { .. }));
        assert_eq!(first.newcomers(), [0; 0], "whoever declines does not wait to join");
        let error = thread::scope(|scope| {
            let again = scope.spawn(|| first.replace(Some(Duration::from_secs(5))).unwrap_err());
            wait_until_it_forms(&meet);
            decline(of_two(1, &meet));
            again.join().unwrap()
        });
        assert!(matches!(error.kind(), ErrorKind::Rendezvous { .. }), "{error}");
        assert!(error.to_string().contains("rank 1 cannot use HERRINGBONE_REDUCERS"), "{error}");
        let sizes = thread::scope(|scope| {
            let again = scope.spawn(|| first.replace(None).unwrap());
            wait_until_it_forms(&meet);
            decline(of_two(1, &meet));
            let newcomer = Communicator::connect(of_two(1, &meet)).unwrap();
            sizes_at_the_end_of(again.join().unwrap(), newcomer)
        });
        assert_eq!(sizes, [2, 2]);
    }

    #[test]
    fn a_rank_of_another_job_does_not_end_this_one() {
        let meet = free_place();
        let sizes = thread::scope(|scope| {
            let first = scope.spawn(|| Communicator::connect(of_two(0, &meet).job("this")).unwrap());
            wait_until_it_forms(&meet);
            decline(of_two(1, &meet).job("another"));
            let second = Communicator::connect(of_two(1, &meet).job("this")).unwrap();
            sizes_at_the_end_of(first.join().unwrap(), second)
        });
        assert_eq!(sizes, [2, 2]);
    }

    #[test]
    fn a_job_that_has_run_may_try_again_when_its_new_rank_0_cannot_use_a_setting() {
        let meet = free_place();
        let error = thread::scope(|scope| {
            let wrong = scope.spawn(|| decline(of_two(0, &meet)));
            let error = Communicator::connect_again(of_two(1, &meet)).unwrap_err();
            wrong.join().unwrap();
            error
        });
        assert!(matches!(error.kind(), ErrorKind::Rendezvous { .. }), "{error}");
        assert!(error.to_string().contains("\"nowhere\" is not host:port"), "{error}");
    }
}
