//! Worlds that do not form: everyone who tried is told why, with ranks and addresses, and who belongs goes on.

use crate::world::{Over, TOKEN, Watchdog, check_sums, each, rendezvous_address, sum, through};
use herringbone::{
    Collective, Communicator, Config, DType, Error, ErrorKind, Rendezvous, Transport,
    core::{algorithm::Algorithm, group::FoldOrder, topology::LinkMatrix},
    server::{Server, ServerOptions},
};
use std::{
    io::{Read, Write},
    net::TcpListener,
    time::{Duration, Instant},
};

/// What a busy machine adds to a timeout.
const MARGIN: Duration = Duration::from_secs(8);

fn config(rank: u32, ranks: u32, meet: &str) -> Config {
    Config::new(rank, ranks, Rendezvous::Tcp(meet.to_owned())).timeout(Duration::from_secs(20))
}

/// What becomes of a world whose ranks have these configurations. Those that form it check that it works.
fn form(configs: &[Config]) -> Vec<Option<Error>> {
    let _watchdog = Watchdog::over("a formation");
    each(configs.len() as u32, |at| match Communicator::connect(configs[at as usize].clone()) {
        Ok(comm) => {
            check_sums(&comm);
            None
        }
        Err(error) => Some(error),
    })
}

#[track_caller]
fn says(error: &Option<Error>, parts: &[&str]) {
    let text = error.as_ref().expect("it should not have formed").to_string();
    assert!(parts.iter().all(|part| text.contains(part)), "{text:?} does not say all of {parts:?}");
}

#[test]
fn a_rank_that_never_comes_is_named_to_all() {
    let meet = rendezvous_address();
    let configs = [0, 1, 3].map(|rank| config(rank, 4, &meet).timeout(Duration::from_secs(2)));
    let began = Instant::now();
    for error in form(&configs) {
        says(&error, &["the group was not formed", "rank 2", "did not come"]);
        assert!(matches!(error.unwrap().kind(), ErrorKind::Rendezvous { .. }));
    }
    assert!(began.elapsed() < Duration::from_secs(2) + MARGIN, "{:?}", began.elapsed());
}

#[test]
fn without_rank_0_the_others_say_where_they_looked() {
    let meet = rendezvous_address();
    let errors = form(&[config(1, 2, &meet).timeout(Duration::from_secs(1))]);
    says(&errors[0], &["rank 1", &format!("rank 0 at {meet}")]);
}

/// The second of two processes with one rank is refused, once while the world forms and once when it has formed.
#[test]
fn a_second_process_with_a_rank_is_refused_at_once() {
    let _watchdog = Watchdog::over("two processes with a rank");
    let meet = rendezvous_address();
    std::thread::scope(|scope| {
        let join = |rank: u32, wait: u64| {
            let meet = meet.clone();
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(wait));
                let result = Communicator::connect(config(rank, 3, &meet));
                if let Ok(comm) = &result {
                    check_sums(comm);
                    std::thread::sleep(Duration::from_millis(1000));
                    check_sums(comm);
                }
                result.err()
            })
        };
        let world = [join(0, 0), join(1, 0), join(2, 600)];
        let (early, late) = (join(1, 300), join(1, 1000));
        for twin in [early, late] {
            let text = twin.join().unwrap().expect("the rank is taken").to_string();
            assert!(
                text.contains("two processes have rank 1, at 127.") && text.matches("127.").count() >= 2,
                "{text}"
            );
        }
        assert!(world.into_iter().all(|rank| rank.join().unwrap().is_none()));
    });
}

/// Within this a rank is refused that does not belong, whenever it comes. It takes milliseconds; the rest is for a loaded machine,
/// and still well below the timeout of the ranks.
const AT_ONCE: Duration = Duration::from_secs(5);

/// Two jobs with one address and one token, of which rank 1 of the second comes to the first: once while that forms, and
/// once when it has formed.
#[test]
fn a_rank_of_another_job_is_told_at_once_which_job_it_met() {
    let _watchdog = Watchdog::over("two jobs at one address");
    let meet = rendezvous_address();
    let meet = meet.as_str();
    std::thread::scope(|scope| {
        let intruder = || {
            let began = Instant::now();
            let error = Communicator::connect(config(1, 2, meet).job("two")).err();
            assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
            let both = [
                "rank 1 is of the job HERRINGBONE_JOB=two and has met the job HERRINGBONE_JOB=one",
                "a port of its own",
            ];
            says(&error, &both);
            assert!(matches!(error.unwrap().kind(), ErrorKind::Rendezvous { .. }));
        };
        let hub = scope.spawn(move || Communicator::connect(config(0, 2, meet).job("one")));
        intruder();
        let last = scope.spawn(move || Communicator::connect(config(1, 2, meet)));
        let world = [hub.join().unwrap().unwrap(), last.join().unwrap().unwrap()];
        intruder();
        for comm in world {
            scope.spawn(move || check_sums(&comm));
        }
    });
}

#[test]
fn a_jobs_name_has_to_fit() {
    for name in [String::new(), "x".repeat(129), "two\nlines".to_owned()] {
        let errors = form(&[config(0, 1, &rendezvous_address()).job(name)]);
        says(&errors[0], &["HERRINGBONE_JOB", "any text of at most 128 bytes, on one line"]);
    }
}

#[test]
fn ranks_outside_the_world_are_refused() {
    let errors = form(&[config(5, 2, &rendezvous_address())]);
    says(&errors[0], &["rank 5 of a world of 2", "ranks are 0 to the world's size - 1"]);
    assert!(matches!(errors[0].as_ref().unwrap().kind(), ErrorKind::Config { .. }));
}

/// A rank that is refused does not keep the others from forming their world.
fn refused(wrong: Config, meet: &str, right: impl Fn(Config) -> Config, parts: &[&str]) {
    let _watchdog = Watchdog::over("a world with a wrong rank");
    std::thread::scope(|scope| {
        let join = |config: Config| scope.spawn(move || form(&[config]).remove(0));
        let first = join(right(config(0, 2, meet)));
        let began = Instant::now();
        says(&join(wrong).join().unwrap(), parts);
        assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
        let last = join(right(config(1, 2, meet)));
        for error in [first.join().unwrap(), last.join().unwrap()] {
            assert!(error.is_none(), "{error:?}");
        }
    });
}

#[test]
fn rank_0_says_why_a_rank_is_missing() {
    let (meet, brief) = (rendezvous_address(), Duration::from_secs(2));
    let configs = [config(0, 3, &meet), config(1, 3, &meet).algorithm(Algorithm::Tree)];
    let errors = form(&configs.map(|config| config.timeout(brief)));
    says(&errors[0], &["ranks 1, 2 of 3 did not come", "rank 1 was refused", "HERRINGBONE_ALGORITHM"]);
}

#[test]
fn contradictions_are_refused_and_the_others_go_on() {
    let meet = rendezvous_address();
    refused(
        config(1, 3, &meet),
        &meet,
        |config| config,
        &["rank 1 has a world of 3, and other ranks have 2"],
    );
    let meet = rendezvous_address();
    refused(
        config(1, 2, &meet).algorithm(Algorithm::Tree),
        &meet,
        |config| config.algorithm(Algorithm::Ring),
        &["rank 1", "HERRINGBONE_ALGORITHM", "\"tree\"", "\"ring\""],
    );
    let (meet, by_shares) = (rendezvous_address(), |text: &str| text.parse::<Algorithm>().unwrap());
    refused(
        config(1, 2, &meet).algorithm(by_shares("weighted(radix,16,1)")),
        &meet,
        |config| config.algorithm(by_shares("weighted(radix,16,2)")),
        &["rank 1", "HERRINGBONE_ALGORITHM", "\"weighted(radix,16,1)\"", "\"weighted(radix,16,2)\""],
    );
    let meet = rendezvous_address();
    refused(
        config(1, 2, &meet).transport(Transport::Tcp),
        &meet,
        |config| config.transport(Transport::Shm),
        &["rank 1", "HERRINGBONE_TRANSPORT", "\"tcp\"", "\"shm\""],
    );
    let meet = rendezvous_address();
    refused(
        config(1, 2, &meet).fold_order(FoldOrder::Ranks),
        &meet,
        |config| config.fold_order(FoldOrder::Hosts),
        &["rank 1", "HERRINGBONE_FOLD_ORDER", "\"ranks\"", "\"hosts\""],
    );
    let meet = rendezvous_address();
    refused(
        config(1, 2, &meet).links(LinkMatrix::uniform(2, 1.0)),
        &meet,
        |config| config.links(LinkMatrix::uniform(2, 2.0)),
        &["rank 1", "HERRINGBONE_TOPOLOGY"],
    );
    let meet = rendezvous_address();
    refused(
        config(1, 2, &meet).reducers(vec!["127.0.0.1:9".to_owned()]),
        &meet,
        |config| config,
        &["rank 1", "HERRINGBONE_REDUCERS", "127.0.0.1:9"],
    );
}

#[test]
fn a_topology_that_does_not_fit_is_told_to_all_ranks() {
    let meet = rendezvous_address();
    let [first, second] = [0, 1].map(|rank| config(rank, 2, &meet));
    for error in form(&[first.links(LinkMatrix::uniform(3, 1.0)), second]) {
        says(
            &error,
            &["HERRINGBONE_TOPOLOGY", "the topology has 3 nodes and the job 2 ranks", "a node for each rank"],
        );
    }
}

/// Only rank 0 says so; all plan by what they found.
#[test]
fn ranks_measure_their_links_if_rank_0_says_so() {
    let _watchdog = Watchdog::over("a measurement");
    for transport in [Transport::Shm, Transport::Tcp] {
        let meet = rendezvous_address();
        let reasons = each(3, |rank| {
            let config = config(rank, 3, &meet).transport(transport);
            let config = if rank == 0 { config.measure_links() } else { config };
            let comm = Communicator::connect(config).unwrap();
            check_sums(&comm);
            comm.explain(Collective::AllReduce, DType::F32, 1 << 20).unwrap()
        });
        assert!(reasons[0].contains("slowest link is busy for"), "{}", reasons[0]);
        assert!(reasons.iter().all(|reason| *reason == reasons[0]), "{reasons:?}");
    }
}

#[test]
fn wrong_tokens_are_refused_and_the_others_go_on() {
    for wrong in [None, Some("another")] {
        let meet = rendezvous_address();
        let mut intruder = config(1, 2, &meet);
        intruder = wrong.map_or(intruder.clone(), |token| intruder.token(token));
        refused(intruder, &meet, |config| config.token(TOKEN), &["rank 0 at", &meet, "HERRINGBONE_TOKEN"]);
    }
    let meet = rendezvous_address();
    refused(
        config(1, 2, &meet).token(TOKEN),
        &meet,
        |config| config,
        &["rank 0 at", &meet, "HERRINGBONE_TOKEN"],
    );
}

#[test]
fn an_address_that_others_reach_needs_a_token() {
    for rank in 0..2 {
        let errors = form(&[config(rank, 2, "192.0.2.1:7070")]);
        says(
            &errors[0],
            &["no job token is set", "192.0.2.1 is not loopback", "HERRINGBONE_TOKEN=$(openssl"],
        );
        assert!(matches!(errors[0].as_ref().unwrap().kind(), ErrorKind::Auth { .. }));
    }
    let far = config(0, 2, &rendezvous_address()).reducers(vec!["192.0.2.1:7070".to_owned()]);
    says(&form(&[far])[0], &["no job token is set", "192.0.2.1 is not loopback"]);
    for token in [None, Some("x".to_owned())] {
        let error = Server::bind(ServerOptions { token, ..ServerOptions::new("0.0.0.0:0".parse().unwrap()) });
        let error = error.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Auth { .. }), "{error}");
    }
    let short = form(&[config(0, 2, "0.0.0.0:0").token("short")]);
    says(&short[0], &["fewer than 16 characters", "0.0.0.0 is not loopback", "openssl"]);
}

#[test]
fn settings_that_cannot_be_used_are_refused() {
    let meet = rendezvous_address();
    let config = config(0, 1, &meet);
    let cases = [
        (config.clone().reducers(vec!["nowhere".to_owned()]), ["HERRINGBONE_REDUCERS", "\"nowhere\""]),
        (config.clone().reducers(vec!["host:99999".to_owned()]), ["HERRINGBONE_REDUCERS", "\"host:99999\""]),
        (config.clone().reducers(vec![":7".to_owned()]), ["HERRINGBONE_REDUCERS", "\":7\""]),
        (
            config.clone().reducers(vec!["a:7".to_owned(), "a:7".to_owned()]),
            ["HERRINGBONE_REDUCERS", "twice"],
        ),
        (config.clone().staging_bytes(1), ["HERRINGBONE_STAGING_BYTES", "1 is not between"]),
        (config.clone().segment_bytes(1), ["HERRINGBONE_SLICE_BYTES", "1 is not between"]),
        (config.clone().interfaces("no such one"), ["HERRINGBONE_IFNAME", "this host has lo (127.0.0.1"]),
        (
            config.clone().staging_bytes(16 << 20).segment_bytes(8 << 20),
            ["HERRINGBONE_SLICE_BYTES", "do not fit into the staging memory of 16M"],
        ),
    ];
    for (config, parts) in cases {
        let errors = form(&[config]);
        says(&errors[0], &parts);
        assert!(matches!(errors[0].as_ref().unwrap().kind(), ErrorKind::Config { .. }));
    }
    let meet = rendezvous_address();
    let forced = [0, 1].map(|rank| self::config(rank, 2, &meet).algorithm(Algorithm::ReductionServer));
    form(&forced).iter().for_each(|error| says(error, &["HERRINGBONE_ALGORITHM", "needs reducers"]));
}

/// The smallest of all ranks counts, of each size.
#[test]
fn sizes_of_different_ranks_make_no_disagreement() {
    for transport in [Transport::Shm, Transport::Tcp] {
        let meet = rendezvous_address();
        let errors = form(&[
            config(0, 2, &meet).transport(transport).staging_bytes(64 << 20).segment_bytes(64 << 10),
            config(1, 2, &meet).transport(transport).staging_bytes(16 << 20),
        ]);
        assert!(errors.iter().all(Option::is_none), "{errors:?}");
    }
}

/// The smallest of all ranks counts, of each size, so two that fit on every rank may not fit together.
#[test]
fn sizes_of_different_ranks_that_do_not_fit_together_are_refused_everywhere() {
    let meet = rendezvous_address();
    let errors = form(&[
        config(0, 2, &meet).staging_bytes(4 << 20),
        config(1, 2, &meet).staging_bytes(64 << 20).segment_bytes(8 << 20),
    ]);
    for (rank, error) in errors.iter().enumerate() {
        let parts = ["HERRINGBONE_SLICE_BYTES", "8M", "staging memory of 4M", "on every rank"];
        says(error, &[&parts[..], &[&format!("rank {rank}:")]].concat());
    }
}

#[test]
fn a_world_forms_at_the_interface_that_is_asked_for() {
    let meet = rendezvous_address();
    let configs = [0, 1, 2].map(|rank| config(rank, 3, &meet).transport(Transport::Tcp).interfaces("=lo"));
    assert!(form(&configs).iter().all(Option::is_none));
}

/// A world whose reducer cannot serve it: where it is forced, all ranks are told its address and what to do; else the world
/// forms without it.
fn without_reducer(address: &str, remedy: &str) {
    let _watchdog = Watchdog::over("a world without its reducer");
    let meet = rendezvous_address();
    each(2, |rank| {
        let config = through(Over::Tcp.set(config(rank, 2, &meet)).token(TOKEN), address);
        let began = Instant::now();
        let error = Communicator::connect(config.timeout(Duration::from_secs(3))).unwrap_err();
        assert!(began.elapsed() < Duration::from_secs(3) + MARGIN, "{:?}", began.elapsed());
        let text = error.to_string();
        assert!(matches!(error.kind(), ErrorKind::Rendezvous { .. }), "{text}");
        assert!(text.contains(address) && text.contains(remedy), "{text}");
    });
    let meet = rendezvous_address();
    each(2, |rank| {
        let config = Over::Tcp.set(config(rank, 2, &meet)).token(TOKEN).reducers(vec![address.to_owned()]);
        let began = Instant::now();
        let comm = Communicator::connect(config.timeout(Duration::from_secs(30))).unwrap();
        assert!(
            began.elapsed() < Duration::from_secs(1) + MARGIN,
            "it waits a second for a reducer at the most"
        );
        sum(&comm, 100_000).unwrap();
    });
}

#[test]
fn a_reducer_that_is_not_there_is_named() {
    let address = rendezvous_address();
    without_reducer(&address, "start herringbone serve there, or correct HERRINGBONE_REDUCERS");
}

#[test]
fn a_stranger_at_the_reducers_address_is_named() {
    let listener = TcpListener::bind(rendezvous_address()).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let _read = stream.read(&mut [0; 100]);
            let _written = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        }
    });
    without_reducer(&address, "correct HERRINGBONE_REDUCERS");
}

#[test]
fn a_reducer_with_another_token_is_named() {
    let mut options = ServerOptions::new("127.0.0.1:0".parse().unwrap());
    options.token = Some("another".to_owned());
    let server = Server::bind(options).unwrap();
    let (address, stop) = (server.address().to_string(), server.stop());
    std::thread::scope(|scope| {
        scope.spawn(|| server.run());
        without_reducer(&address, "give every worker and reducer the same HERRINGBONE_TOKEN");
        stop.stop();
    });
}
