use super::*;
use std::sync::mpsc;

fn environment<'a>(more: &[(&'a str, &'a str)]) -> Environment {
    let usual = [
        ("DMLC_ROLE", "worker"),
        ("DMLC_NUM_WORKER", "2"),
        ("DMLC_NUM_SERVER", "3"),
        ("DMLC_PS_ROOT_URI", "127.0.0.1"),
        ("DMLC_PS_ROOT_PORT", "9091"),
    ];
    Environment::of(usual.into_iter().chain(more.iter().copied()))
}

#[test]
fn lines_are_read_and_what_is_wrong_with_them_is_named() {
    let line = PsLiteLine::read(&environment(&[("DMLC_WORKER_ID", "1"), ("PORT", "77")])).unwrap().unwrap();
    assert_eq!((line.role, line.workers, line.servers), (PsLiteRole::Worker, 2, 3));
    assert_eq!((line.rank, line.own_host, line.own_port), (Some(1), None, 77));
    assert_eq!(line.patience, Duration::from_secs(10));
    assert!(PsLiteLine::read(&Environment::of([])).unwrap().is_none());
    for (more, words) in [
        (("DMLC_ROLE", "joint"), "\"joint\" is none of scheduler"),
        (("DMLC_NUM_SERVER", "0"), "1 to 32768 of them"),
        (("DMLC_NUM_WORKER", ""), "it is not set"),
        (("DMLC_WORKER_ID", "2"), "2 of 2 workers"),
        (("DMLC_PS_ROOT_PORT", "65536"), "DMLC_PS_ROOT_PORT: \"65536\" is not what ps-lite writes"),
        (("DMLC_NODE_HOST", "eth0"), "DMLC_NODE_HOST"),
    ] {
        let error = PsLiteLine::read(&environment(&[more])).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

/// A port that is free at the moment.
fn free_port() -> u16 {
    std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

fn line(role: PsLiteRole, port: u16) -> PsLiteLine {
    PsLiteLine {
        role,
        workers: 2,
        servers: 2,
        host: "127.0.0.1".to_owned(),
        port,
        rank: None,
        own_host: None,
        own_port: 0,
        patience: Duration::from_millis(300),
    }
}

fn config(timeout: Duration) -> Config {
    Config::new(0, 1, Rendezvous::Tcp(String::new())).timeout(timeout)
}

/// A scheduler, two servers and two workers, of which one says goodbye and the other does as `ends`.
fn job(ends: impl FnOnce(PsLiteWorker)) {
    let (port, config) = (free_port(), config(Duration::from_secs(30)));
    std::thread::scope(|scope| {
        let config = &config;
        let roles = [PsLiteRole::Server, PsLiteRole::Scheduler, PsLiteRole::Server];
        let others: Vec<_> = roles
            .into_iter()
            .map(|role| {
                scope.spawn(move || match role {
                    PsLiteRole::Scheduler => line(role, port).schedule(config),
                    _ => line(role, port).serve(config),
                })
            })
            .collect();
        let (joined, arrivals) = mpsc::channel();
        for _ in 0..2 {
            let joined = joined.clone();
            scope.spawn(move || joined.send(line(PsLiteRole::Worker, port).join(config).unwrap()));
        }
        let mut workers: Vec<PsLiteWorker> = arrivals.iter().take(2).collect();
        workers.sort_unstable_by_key(PsLiteWorker::rank);
        assert_eq!(workers.iter().map(PsLiteWorker::rank).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(workers[0].servers(), workers[1].servers());
        assert_eq!(workers[0].servers().len(), 2);
        let third = line(PsLiteRole::Worker, port).join(config).unwrap_err().to_string();
        assert!(third.contains("2 other processes are there"), "{third}");
        let own = Config::new(0, 2, Rendezvous::Tcp(String::new()));
        let servers = ParameterServer::connect(&own, workers[0].servers()).unwrap();
        servers.table("t", TableSpec::new(4, 1)).unwrap().push_range(0, &[1.0_f32; 4], false).unwrap();
        ends(workers.remove(0));
        assert!(others.iter().all(|other| !other.is_finished()), "one worker is still there");
        drop(workers);
        others.into_iter().for_each(|other| other.join().unwrap().unwrap());
    });
}

#[test]
fn all_find_each_other_and_end_together() {
    job(drop);
}

#[test]
fn a_scheduler_that_nobody_comes_to_ends() {
    let line = line(PsLiteRole::Scheduler, free_port());
    let error = line.schedule(&config(Duration::from_millis(200))).unwrap_err().to_string();
    assert!(error.contains("not all of 2 workers and 2 servers") && error.contains("0 of them"), "{error}");
}

#[test]
fn a_worker_that_meets_a_dead_server_is_told() {
    let (port, config) = (free_port(), config(Duration::from_secs(30)));
    std::thread::scope(|scope| {
        scope.spawn(|| line(PsLiteRole::Scheduler, port).schedule(&config));
        let dead = line(PsLiteRole::Server, port).enter(&config, 0..2).unwrap();
        let other = line(PsLiteRole::Server, port).enter(&config, 0..2).unwrap();
        let second = line(PsLiteRole::Worker, port).enter(&config, 2..4).unwrap();
        second.nodes.end_step().unwrap();
        for server in [&dead, &other] {
            server.nodes.push(&[server.number.into()], &written("127.0.0.1:9"), false).unwrap();
        }
        let error = line(PsLiteRole::Worker, port).join(&config).unwrap_err().to_string();
        assert!(error.contains("a server of the job is lost: start the whole job again"), "{error}");
    });
}

#[test]
fn a_server_that_is_lost_before_all_workers_have_left_ends_the_job() {
    let (port, config) = (free_port(), config(Duration::from_secs(30)));
    std::thread::scope(|scope| {
        let scheduler = scope.spawn(|| line(PsLiteRole::Scheduler, port).schedule(&config));
        let server = line(PsLiteRole::Server, port).enter(&config, 0..2).unwrap();
        server.nodes.push(&[0], &written("127.0.0.1:9"), false).unwrap();
        let worker = line(PsLiteRole::Worker, port).enter(&config, 2..4).unwrap();
        worker.nodes.end_step().unwrap();
        let worker = scope.spawn(move || line(PsLiteRole::Worker, port).addresses(&worker).map(drop));
        drop(server);
        let error = scheduler.join().unwrap().unwrap_err().to_string();
        assert!(error.contains("server 0 of 2 was lost with its rows: start the whole job again"), "{error}");
        let error = worker.join().unwrap().unwrap_err().to_string();
        assert!(error.contains("the scheduler at 127.0.0.1:") && error.contains("is lost"), "{error}");
    });
}
