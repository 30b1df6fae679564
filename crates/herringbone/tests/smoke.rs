use herringbone::{
    Communicator, Config, ReduceOp, Rendezvous, Transport,
    server::{Server, ServerOptions},
};
use std::net::TcpListener;

fn free_port() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

fn world(n: u32, f: impl Fn(Config) -> Config + Sync, body: impl Fn(Communicator) + Sync) {
    let address = free_port();
    std::thread::scope(|scope| {
        for rank in 0..n {
            let (f, body, address) = (&f, &body, address.clone());
            scope.spawn(move || {
                let config = f(Config::new(rank, n, Rendezvous::Tcp(address))
                    .timeout(std::time::Duration::from_secs(20)));
                body(Communicator::connect(config).unwrap());
            });
        }
    });
}

fn sums(comm: &Communicator, count: usize) {
    let n = comm.size();
    for _ in 0..3 {
        let mut values: Vec<f32> = (0..count).map(|i| (comm.rank() + 1) as f32 * (i % 17) as f32).collect();
        comm.all_reduce(&mut values, ReduceOp::Sum).unwrap();
        let total = (n * (n + 1) / 2) as f32;
        assert!(values.iter().enumerate().all(|(i, v)| *v == total * (i % 17) as f32));
    }
}

const COUNTS: [usize; 6] = [0, 1, 3, 100, 5000, 3_000_000];

#[test]
fn shm() {
    for n in [1, 2, 3, 5] {
        world(
            n,
            |c| c,
            |comm| {
                COUNTS.iter().for_each(|c| sums(&comm, *c));
                eprintln!("{}", comm.describe());
            },
        );
    }
}
#[test]
fn tcp() {
    for n in [2, 3, 5] {
        world(n, |c| c.transport(Transport::Tcp), |comm| COUNTS.iter().for_each(|c| sums(&comm, *c)));
    }
}
#[test]
fn reducers() {
    for m in 1..4 {
        let servers: Vec<_> = (0..m)
            .map(|_| {
                let mut o = ServerOptions::new("127.0.0.1:0".parse().unwrap());
                o.token = Some("t".into());
                Server::bind(o).unwrap()
            })
            .collect();
        let list: Vec<String> = servers.iter().map(|s| s.address().to_string()).collect();
        let stops: Vec<_> = servers.iter().map(|s| s.stop()).collect();
        std::thread::scope(|scope| {
            for s in &servers {
                scope.spawn(|| s.run());
            }
            for n in [1, 2, 3, 5] {
                world(
                    n,
                    |c| c.token("t").reducers(list.clone()),
                    |comm| {
                        COUNTS.iter().for_each(|c| sums(&comm, *c));
                        if comm.rank() == 0 {
                            eprintln!("{:?}", comm.stats());
                        }
                    },
                );
            }
            for s in &stops {
                s.stop();
            }
        });
    }
}
