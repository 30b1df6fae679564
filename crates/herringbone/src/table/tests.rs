//! Workers as threads, and servers as they run.

use super::{ParameterServer, RemoteTable, TableOptions, calls::TableCall};
use crate::{
    Config, Error, ErrorKind, ReduceOp, Rendezvous,
    core::{
        session::status::TableServerStatus,
        table::{
            Consistency, Initializer, NotANumber, OptimizerKind, OptimizerSpec, RowKeys, TableError,
            TableRequest, TableSpec, ValueCodec,
        },
    },
    local,
    server::{Server, ServerOptions, Stop},
};
use std::{
    net::SocketAddr,
    sync::{Arc, Barrier},
    thread::JoinHandle,
    time::{Duration, Instant},
};

mod coded;
mod full;
mod groups;
mod known_keys;
mod mxnet;
mod own;
mod reopened;
mod steps;
mod transport;
mod waiting;

/// A server that runs.
type Running = (Stop, Option<JoinHandle<()>>);

fn run(server: Server) -> Running {
    run_shared(&Arc::new(server))
}

/// Runs a server that is asked how it stands.
fn run_shared(server: &Arc<Server>) -> Running {
    let running = server.clone();
    (server.stop(), Some(std::thread::spawn(move || running.run())))
}

fn status_of(server: &Server) -> TableServerStatus {
    // A busy one gives no answer.
    std::iter::repeat_with(|| server.tables()).flatten().next().unwrap()
}

/// Servers that run until this is dropped.
struct Servers {
    running: Vec<Running>,
    addresses: Vec<String>,
}

impl Servers {
    fn start(count: usize) -> Self {
        Self::with_memory(count, 1 << 30)
    }

    fn with_memory(count: usize, memory_bytes: u64) -> Self {
        Self::with(count, &TableOptions { memory_bytes, ..TableOptions::default() })
    }

    fn with(count: usize, options: &TableOptions) -> Self {
        let (mut running, mut addresses) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let server = Self::bind("127.0.0.1:0", options);
            addresses.push(server.address().to_string());
            running.push(run(server));
        }
        Self { running, addresses }
    }

    fn bind(address: &str, options: &TableOptions) -> Server {
        let patience = Some(Duration::from_millis(300));
        let tables = Some(TableOptions { patience, ..options.clone() });
        let address: SocketAddr = address.parse().unwrap();
        Server::bind(ServerOptions { tables, ..ServerOptions::new(address) }).unwrap()
    }

    /// Ends a server, and starts another one at its address.
    fn start_anew(&mut self, at: usize, options: &TableOptions) {
        end(&mut self.running[at]);
        self.running[at] = run(Self::bind(&self.addresses[at], options));
    }

    fn worker(&self, rank: u32, workers: u32) -> ParameterServer {
        self.within(rank, workers, Duration::from_secs(20))
    }

    fn within(&self, rank: u32, workers: u32, timeout: Duration) -> ParameterServer {
        let config = Config::new(rank, workers, Rendezvous::Tcp(String::new())).timeout(timeout);
        ParameterServer::connect(&config, &self.addresses).unwrap()
    }

    /// Runs so many workers, each with its own table of a name.
    fn with_workers<R: Send>(
        &self,
        workers: u32,
        spec: &TableSpec,
        work: impl Fn(u32, &RemoteTable) -> R + Sync,
    ) -> Vec<R> {
        std::thread::scope(|scope| {
            let start = |rank| {
                let work = &work;
                scope.spawn(move || work(rank, &self.worker(rank, workers).table("t", spec.clone()).unwrap()))
            };
            let running: Vec<_> = (0..workers).map(start).collect();
            running.into_iter().map(|worker| worker.join().unwrap()).collect()
        })
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.running.iter_mut().for_each(end);
    }
}

fn end((stop, thread): &mut Running) {
    stop.stop();
    thread.take().into_iter().for_each(|thread| drop(thread.join()));
}

fn problem(error: &Error) -> TableError {
    match error.kind() {
        ErrorKind::Table { problem, .. } => problem.clone(),
        other => panic!("{other}"),
    }
}

fn sync(rows: u64, width: u32) -> TableSpec {
    TableSpec { consistency: Consistency::Sync, ..TableSpec::new(rows, width) }
}

/// Numbers whose sum depends on the order in which they are added.
fn awkward(rank: u32, step: u64, at: usize) -> f32 {
    let mixed =
        (u64::from(rank) + 1).wrapping_mul(0x9e37_79b9) ^ (step * 977 + at as u64).wrapping_mul(0x85eb_ca6b);
    (mixed % 2_000_003) as f32 * 1e-3 - 1000.0
}

#[test]
fn what_is_pushed_is_there_and_rows_lie_on_all_servers() {
    let servers = Servers::start(3);
    let table = servers.worker(0, 1).table("t", TableSpec::new(1000, 5)).unwrap();
    let all: Vec<f32> = (0..5000).map(|at| at as f32).collect();
    table.push_range(0, &all, false).unwrap();
    table.push(&[999, 0, 500, 0], &[1.0_f32; 20], false).unwrap();
    let mut rows = vec![0.0_f32; 15];
    table.pull(&[500, 999, 500], &mut rows).unwrap();
    assert_eq!(rows[..6], [2501.0, 2502.0, 2503.0, 2504.0, 2505.0, 4996.0]);
    assert_eq!(rows[..5], rows[10..]);
    let mut rows = vec![0.0_f32; 5000];
    table.pull_range(0, &mut rows).unwrap();
    assert_eq!(rows[..5], [2.0, 3.0, 4.0, 5.0, 6.0], "a key that is there twice is added up");
    assert_eq!(rows[5..2500], all[5..2500]);
}

#[test]
fn sync_tables_have_the_bits_of_an_all_reduce() {
    let (servers, workers, length) = (Servers::start(2), 5, 3000);
    let reduced: Vec<Vec<f32>> = std::thread::scope(|scope| {
        let running: Vec<_> = local(workers)
            .unwrap()
            .into_iter()
            .map(|comm| {
                scope.spawn(move || {
                    let mut values: Vec<f32> = (0..length).map(|at| awkward(comm.rank(), 0, at)).collect();
                    comm.all_reduce(&mut values, ReduceOp::Sum).unwrap();
                    values
                })
            })
            .collect();
        running.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    let assign = OptimizerSpec::of(OptimizerKind::Assign);
    let spec = TableSpec { optimizer: assign, ..sync(length as u64 / 3, 3) };
    let pulled = servers.with_workers(workers, &spec, |rank, table| {
        let values: Vec<f32> = (0..length).map(|at| awkward(rank, 0, at)).collect();
        // Each cuts what it pushes in its own way.
        let cut = 3 * (100 + 50 * rank as usize);
        table.push_range(0, &values[..cut], true).unwrap();
        table.push_range(cut as u64 / 3, &values[cut..], false).unwrap();
        let mut rows = vec![0.0_f32; length];
        table.pull_range(0, &mut rows).unwrap();
        rows
    });
    for rows in pulled {
        assert!(rows.iter().zip(&reduced[0]).all(|(one, other)| one.to_bits() == other.to_bits()));
    }
}

#[test]
fn a_pull_sees_all_pushes_of_its_step_and_none_of_later_ones() {
    let (servers, workers) = (Servers::start(2), 4);
    let spec = TableSpec { sparse: true, ..sync(64, 2) };
    servers.with_workers(workers, &spec, |rank, table| {
        for step in 1..=50_u64 {
            std::thread::sleep(Duration::from_micros(u64::from(rank) * 50 * (step % 3)));
            table.push(&[3, 40], &[1.0_f32, 1.0, 2.0, 2.0], false).unwrap();
            let mut rows = [0.0_f32; 4];
            table.pull(&[3, 40], &mut rows).unwrap();
            let so_far = (step * u64::from(workers)) as f32;
            assert_eq!(rows, [so_far, so_far, 2.0 * so_far, 2.0 * so_far], "rank {rank}, step {step}");
        }
    });
}

#[test]
fn nobody_is_further_ahead_than_the_bound() {
    let (servers, workers, bound) = (Servers::start(2), 3, 2);
    let spec = TableSpec { consistency: Consistency::Bounded(bound), ..TableSpec::new(3, 1) };
    servers.with_workers(workers, &spec, |rank, table| {
        for step in 1..=40_u64 {
            std::thread::sleep(Duration::from_micros(u64::from((rank * 7 + step as u32 * 13) % 5) * 300));
            table.push_range(u64::from(rank), &[1.0_f32], false).unwrap();
            let mut rows = [0.0_f32; 3];
            table.pull_range(0, &mut rows).unwrap();
            let least = step.saturating_sub(u64::from(bound)) as f32;
            assert!(rows.iter().all(|pushed| *pushed >= least), "rank {rank}, step {step}: {rows:?}");
        }
    });
}

#[test]
fn who_differs_or_asks_for_what_cannot_be_is_told_and_the_table_goes_on() {
    let servers = Servers::start(2);
    let worker = servers.worker(0, 1);
    let table = worker.table("t", TableSpec::new(10, 2)).unwrap();
    let refused = |result: Result<(), Error>| problem(&result.unwrap_err());
    assert!(matches!(
        refused(table.push(&[10], &[1.0_f32; 2], false)),
        TableError::RowKeys { last: 10, end: 9, .. }
    ));
    assert!(matches!(
        refused(table.push(&[1, 2], &[1.0_f32; 3], false)),
        TableError::Length { expected: 16, found: 12 }
    ));
    assert_eq!(
        refused(table.push(&[1, 7], &[1.0, 1.0, 1.0, f32::NAN], false)),
        TableError::NotANumber { key: 7 }
    );
    assert!(refused(table.push(&[1], &[1.0_f64; 2], false)).to_string().contains("values of f64"));
    assert!(matches!(refused(table.tune("momentum", 0.5)), TableError::Unusable(_)));
    for (name, made, tuned, says) in
        [("with", 0.5, 0.0, "keeps a velocity"), ("without", 0.0, 0.5, "keeps no velocity")]
    {
        let optimizer = OptimizerSpec::of(OptimizerKind::Signum).with("momentum", made).unwrap();
        let signum = worker.table(name, TableSpec { optimizer, ..TableSpec::new(10, 2) }).unwrap();
        let refusal = refused(signum.tune("momentum", tuned)).to_string();
        assert!(refusal.contains(says), "{refusal}");
    }
    let other = worker.table("t", TableSpec::new(10, 3)).unwrap_err();
    assert!(other.to_string().contains("differs in width"), "{other}");
    assert!(worker.table("", TableSpec::new(1, 1)).is_err());
    table.push(&[9], &[1.0_f32, 2.0], false).unwrap();
    let mut row = [0.0_f32; 2];
    table.pull(&[9], &mut row).unwrap();
    assert_eq!((row, table.step()), ([1.0, 2.0], 1));
    worker.drop_table("t").unwrap();
    assert_eq!(refused(table.pull(&[9], &mut row)), TableError::Unknown);
    assert_eq!(refused(worker.drop_table("t")), TableError::Unknown);
}

#[test]
fn rows_without_an_initializer_are_missing_and_a_full_server_says_so() {
    let servers = Servers::with_memory(1, 100_000);
    let worker = servers.worker(0, 1);
    let missing =
        TableSpec { sparse: true, initializer: Initializer::Missing, ..TableSpec::new(1 << 40, 16) };
    let table = worker.table("rows", missing).unwrap();
    table.push(&[1 << 39], &[1.0_f32; 16], false).unwrap();
    let mut rows = [0.0_f32; 32];
    let error = table.pull(&[7, 1 << 39], &mut rows).unwrap_err();
    assert_eq!(problem(&error), TableError::Missing { key: 7 });
    let keys: Vec<u64> = (0..2000).collect();
    let error = table.push(&keys, &vec![1.0_f32; 2000 * 16], false).unwrap_err();
    assert_eq!(problem(&error), TableError::Full { limit: 100_000 });
    let dense = worker.table("dense", TableSpec::new(1 << 20, 1)).unwrap_err();
    assert_eq!(problem(&dense), TableError::Full { limit: 100_000 });
}

#[test]
fn rows_begin_as_their_keys_and_the_seed_say() {
    let servers = Servers::start(2);
    let initializer = Initializer::Normal { seed: 7, deviation: 0.5 };
    let sparse = TableSpec { sparse: true, initializer, ..TableSpec::new(100_000, 8) };
    let dense = TableSpec { sparse: false, ..sparse.clone() };
    let worker = servers.worker(0, 1);
    let (mut one, mut other) = (vec![0.0_f32; 800_000], vec![0.0_f32; 800_000]);
    worker.table("sparse", sparse).unwrap().pull_range(0, &mut one).unwrap();
    worker.table("dense", dense).unwrap().pull_range(0, &mut other).unwrap();
    assert_eq!(one, other);
    let mean = one.iter().map(|value| f64::from(*value)).sum::<f64>() / one.len() as f64;
    let variance = one.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>() / one.len() as f64;
    assert!(mean.abs() < 0.005 && (variance - 0.25).abs() < 0.005, "{mean} {variance}");
}

#[test]
fn a_nan_is_counted_if_that_is_asked_for() {
    let servers = Servers::start(1);
    let spec = TableSpec { not_a_number: NotANumber::Counted, ..TableSpec::new(4, 1) };
    let table = servers.worker(0, 1).table("t", spec).unwrap();
    table.push(&[2], &[f32::NAN], false).unwrap();
    let mut row = [0.0_f32];
    table.pull(&[2], &mut row).unwrap();
    assert!(row[0].is_nan());
}

#[test]
fn a_server_that_is_gone_is_named_and_a_rank_is_one_process() {
    let mut servers = Servers::start(2);
    let first = servers.worker(0, 1);
    let table = first.table("t", TableSpec::new(10, 1)).unwrap();
    let second = servers.worker(0, 1).table("t", TableSpec::new(10, 1)).unwrap_err();
    assert_eq!(problem(&second), TableError::Twice { worker: 0 });
    let (stop, thread) = servers.running.remove(1);
    stop.stop();
    thread.into_iter().for_each(|thread| drop(thread.join()));
    let error = table.push(&[1, 9], &[1.0_f32; 2], false).unwrap_err();
    let ErrorKind::TableServerLost { address, .. } = error.kind() else { panic!("{error}") };
    assert_eq!(*address, servers.addresses[1]);
    let again = first.table("t", TableSpec::new(10, 1)).unwrap_err();
    assert!(again.to_string().contains("make another ParameterServer"), "{again}");
}

#[test]
fn optimizers_step_as_their_formulas_say() {
    let servers = Servers::start(1);
    let worker = servers.worker(0, 1);
    let numbers = |spec: OptimizerSpec, pushes: &[f64]| {
        let name = spec.to_string();
        let spec =
            TableSpec { dtype: crate::DType::F64, optimizer: spec, sparse: true, ..TableSpec::new(1, 1) };
        let table = worker.table(&name, spec).unwrap();
        pushes.iter().for_each(|pushed| table.push(&[0], &[*pushed], false).unwrap());
        let mut row = [0.0_f64];
        table.pull(&[0], &mut row).unwrap();
        row[0]
    };
    let of = |kind, rate| OptimizerSpec::of(kind).with("learning_rate", rate).unwrap();
    assert_eq!(numbers(of(OptimizerKind::Sgd, 0.5), &[1.0, 2.0]), -1.5);
    let momentum = of(OptimizerKind::Sgd, 0.5).with("momentum", 0.5).unwrap();
    assert_eq!(numbers(momentum, &[1.0, 2.0]), -0.5 + (-0.25 - 1.0));
    assert_eq!(numbers(of(OptimizerKind::Adam, 0.5).with("epsilon", 0.0).unwrap(), &[3.0]), -0.5);
    let clipped = of(OptimizerKind::Sgd, 1.0).with("clip_gradient", 0.25).unwrap();
    assert_eq!(numbers(clipped, &[8.0, -8.0, -8.0]), 0.25);
    let adagrad = of(OptimizerKind::Adagrad, 1.0).with("epsilon", 0.0).unwrap();
    assert_eq!(numbers(adagrad, &[3.0, 4.0]), -1.0 - 4.0 / 5.0);
}

#[test]
fn a_step_waits_for_all_workers_and_for_none_that_has_left() {
    let servers = Arc::new(Servers::start(1));
    let meet = Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let table = servers.worker(1, 2).table("t", sync(2, 1)).unwrap();
            table.push(&[0], &[1.0_f32], false).unwrap();
            meet.wait();
        });
        let table = servers.within(0, 2, Duration::from_secs(10)).table("t", sync(2, 1)).unwrap();
        table.push(&[0], &[1.0_f32], false).unwrap();
        let mut row = [0.0_f32];
        table.pull(&[0], &mut row).unwrap();
        assert_eq!(row, [2.0]);
        meet.wait();
        table.push(&[0], &[1.0_f32], false).unwrap();
        table.pull(&[0], &mut row).unwrap();
        assert_eq!(row, [3.0], "the other one has said goodbye");
    });
}

/// Of a step that ended on one range only, the others drop on the other ranges what was pushed in it: after the server's patience.
#[test]
fn a_worker_that_dies_while_it_ends_a_step_is_waited_for_as_any_that_dies() {
    let servers = Servers::start(2);
    let (stays, dies) = (servers.worker(0, 2), servers.worker(1, 2));
    let [table, half] = [&stays, &dies].map(|worker| worker.table("t", sync(4, 1)).unwrap());
    half.push_range(0, &[1.0_f32; 4], true).unwrap();
    let (call, keys) = (TableCall::new(), RowKeys::Listed(Vec::new().into()));
    let end =
        TableRequest::Push { table: half.numbers[0], step: 0, ends: true, codec: ValueCodec::PLAIN, keys };
    half.connections.ask(0, end, &call);
    half.connections.wait("push", "t", &call).unwrap();
    // It says no goodbye.
    half.forget();
    drop((half, dies));
    let began = Instant::now();
    let mut rows = [0.0_f32; 4];
    for sums in [[3.0, 3.0, 2.0, 2.0], [5.0, 5.0, 4.0, 4.0]] {
        table.push_range(0, &[2.0_f32; 4], false).unwrap();
        table.pull_range(0, &mut rows).unwrap();
        assert_eq!(rows, sums);
    }
    assert!(began.elapsed() < Duration::from_secs(5), "{:?} for a patience of 0.3 s", began.elapsed());
    // It comes back where it had ended the step, and ends it on the other range, too.
    let back = servers.worker(1, 2).table("t", sync(4, 1)).unwrap();
    assert_eq!(back.step(), 2);
}

#[test]
fn threads_share_a_table() {
    let servers = Servers::start(2);
    let table = servers.worker(0, 1).table("t", TableSpec::new(10, 1)).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for at in 0..50_u64 {
                    table.push(&[at % 3, 9], &[1.0_f32, 1.0], at % 2 == 0).unwrap();
                    table.pull(&[9], &mut [0.0_f32]).unwrap();
                }
            });
        }
    });
    let mut row = [0.0_f32];
    table.pull(&[9], &mut row).unwrap();
    assert_eq!((row, table.step()), ([200.0], 100));
}
