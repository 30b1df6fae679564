use super::*;
use crate::{
    core::session::{
        Refusal, Role,
        handshake::{Expected, HandshakeError, Hello, Identity, Purpose},
        membership::{MEMBERS, MemberId},
    },
    fabric::{dial, greet::GreetError},
    status::{Activity, ask},
};
use std::{
    net::TcpStream,
    sync::mpsc::channel,
    thread::{self, Scope},
};

const TOKEN: &str = "a token of the tests";

/// A server that runs while `body` does.
fn serving(body: impl FnOnce(&Server)) {
    let mut options = ServerOptions::new("127.0.0.1:0".parse().unwrap());
    options.token = Some(TOKEN.to_owned());
    let server = Server::bind(options).unwrap();
    thread::scope(|scope: &Scope<'_, '_>| {
        scope.spawn(|| server.run());
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| body(&server)));
        server.stop().stop();
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

fn worker(job: u64, incarnation: u64) -> Identity {
    Identity { role: Role::Worker, job, rank: 0, world: 2, incarnation }
}

fn call(server: &Server, identity: Identity) -> Result<TcpStream, GreetError> {
    let hello = Hello { identity, purpose: Purpose::Data, versions: Versions::CURRENT };
    let expected = Expected { role: Role::Reducer, rank: None, incarnation: None };
    let mut stream = dial::dial(&server.address().to_string(), None, |_| Ok(()))?;
    greet::greet(&mut stream, hello, expected, TOKEN.as_bytes())?;
    Ok(stream)
}

fn is_over(stream: &TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    matches!(stream.peek(&mut [0]), Ok(0))
}

#[test]
fn another_life_of_a_rank_is_refused_and_the_first_one_stays() {
    serving(|server| {
        let first = call(server, worker(5, 7)).unwrap();
        match call(server, worker(5, 8)).unwrap_err() {
            GreetError::Handshake(HandshakeError::Refused(Refusal::DuplicateRank {
                rank: 0,
                first: at,
                ..
            })) => {
                assert_eq!(at, first.local_addr().unwrap().to_string());
            }
            error => panic!("{error}"),
        }
        assert!(!is_over(&first));
        drop(first);
        assert!(
            !call(server, worker(5, 8)).unwrap_err().may_pass(),
            "a job's rank has one life, also afterwards"
        );
        call(server, worker(6, 8)).unwrap();
    });
}

#[test]
fn a_second_connection_of_a_rank_waits_until_the_first_is_over() {
    serving(|server| {
        let first = call(server, worker(5, 7)).unwrap();
        // The first is in place a moment after its welcome.
        while server.jobs.stats().jobs == 0 || !is_linked(server, 5) {
            thread::yield_now();
        }
        for _ in 0..3 {
            assert!(call(server, worker(5, 7)).unwrap_err().may_pass(), "it is told to come again");
        }
        assert!(!is_over(&first));
        drop(first);
        let again = Instant::now();
        while let Err(error) = call(server, worker(5, 7)) {
            assert!(error.may_pass() && again.elapsed() < Duration::from_secs(10), "{error}");
        }
    });
}

fn is_linked(server: &Server, job: u64) -> bool {
    let rank = MemberId::new(0);
    server.jobs.with_engine(job, |engine| {
        engine.runtime.links.endpoints.get(rank).is_some_and(|worker| worker.is_up())
    })
}

/// In bytes, as the kernel counts what this process has.
fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * rustix::param::page_size()
}

#[test]
fn what_a_handshake_claims_costs_nothing() {
    serving(|server| {
        let before = resident();
        let world = MEMBERS as u32 - 1;
        let calls = (0..64).map(|job| Identity { rank: world - 1, world, ..worker(job + 1, 7) });
        let open: Vec<TcpStream> = calls.map(|identity| call(server, identity).unwrap()).collect();
        assert_eq!(server.stats().jobs, open.len());
        let grown = resident().saturating_sub(before);
        // Threads and tables of 64 jobs; a list of the claimed workers was 40 MB for each.
        assert!(grown < 64 << 20, "{grown} bytes more");
    });
}

#[test]
fn who_calls_is_heard_while_a_jobs_engine_is_busy() {
    serving(|server| {
        let _busy = call(server, worker(5, 7)).unwrap();
        let (release, held) = channel::<()>();
        let (took, taken) = channel::<()>();
        thread::scope(|scope| {
            scope.spawn(|| {
                let (took, held) = (took, held);
                server.jobs.with_engine(5, |_| {
                    took.send(()).unwrap();
                    held.recv().unwrap();
                });
            });
            taken.recv().unwrap();
            // Long enough for a sign of life to be due.
            thread::sleep(2 * SIGN_OF_LIFE);
            let other = call(server, worker(6, 7));
            let answer = ask(&server.address().to_string(), Some(TOKEN), None, Duration::from_secs(10));
            release.send(()).unwrap();
            other.unwrap();
            let Activity::Serves { jobs, .. } = answer.unwrap().status.activity else { panic!("it serves") };
            let known: Vec<(u64, bool)> =
                jobs.iter().map(|served| (served.job, served.job_status.is_some())).collect();
            assert_eq!(known, [(5, false), (6, true)], "of a busy engine nothing is known");
        });
    });
}
