//! Embeddings on a parameter server: workers pull the rows of a batch and push their gradients.
//!
//! ```sh
//! cargo build -p herringbone --example tables
//! herringbone launch -n 2 --tables 1 -- target/debug/examples/tables
//! target/debug/examples/tables
//! ```
//! Where `HERRINGBONE_TABLES` names no server, as in the last line, the program is a server and its only worker.

use herringbone::{
    Config, ErrorKind, Rendezvous,
    core::table::{Consistency, OptimizerKind, OptimizerSpec, TableError, TableSpec},
    server::{Server, ServerOptions},
    table::{ParameterServer, TableOptions},
};
use std::{env, error::Error, thread};

const ROWS: u64 = 1_000_000;
const WIDTH: usize = 8;
const STEPS: u64 = 40;

fn main() -> Result<(), Box<dyn Error>> {
    if env::var_os("HERRINGBONE_TABLES").is_some() {
        let config = Config::worker_from_env()?;
        return train(&ParameterServer::from_env()?, config.rank(), config.world());
    }
    let tables = Some(TableOptions::default());
    let server = Server::bind(ServerOptions { tables, ..ServerOptions::new("127.0.0.1:0".parse()?) })?;
    thread::scope(|scope| {
        let serving = scope.spawn(|| server.run());
        // Workers meet at their servers, so they need no place to meet at.
        let alone = Config::new(0, 1, Rendezvous::Tcp(String::new()));
        let trained = ParameterServer::connect(&alone, &[server.address().to_string()])
            .map_err(Into::into)
            .and_then(|servers| train(&servers, 0, 1));
        server.stop().stop();
        serving.join().map_err(|_| "the server has panicked")?;
        trained
    })
}

/// Moves each row that it uses towards its key's target.
fn train(servers: &ParameterServer, rank: u32, workers: u32) -> Result<(), Box<dyn Error>> {
    let optimizer = OptimizerSpec::of(OptimizerKind::Sgd).with("learning_rate", 0.5)?;
    // The gradients of a step are summed over all workers: this makes it their mean.
    let optimizer = optimizer.with("rescale_grad", 1.0 / f64::from(workers))?;
    let consistency = Consistency::Sync;
    let spec = TableSpec { sparse: true, optimizer, consistency, ..TableSpec::new(ROWS, WIDTH as u32) };
    let embeddings = servers.table("embeddings", spec)?;
    let keys = [3, 141_592, 999_999];
    let mut rows = vec![0.0_f32; keys.len() * WIDTH];
    for _ in 0..STEPS {
        embeddings.pull(&keys, &mut rows)?;
        let gradients = difference(&keys, &rows);
        // This ends the step: the next pull waits for the other workers' pushes of it.
        embeddings.push(&keys, &gradients, false)?;
    }
    embeddings.pull(&keys, &mut rows)?;
    let furthest = difference(&keys, &rows).into_iter().map(f32::abs).fold(0.0, f32::max);
    if let Err(error) = embeddings.pull(&[ROWS], &mut rows[..WIDTH]) {
        match error.kind() {
            // The table goes on, as after every error of this kind.
            ErrorKind::Table { problem: TableError::RowKeys { .. }, .. } => {}
            // Start the server again, connect anew, and restore a snapshot.
            ErrorKind::TableServerLost { .. } => return Err(error.into()),
            _ => return Err(error.into()),
        }
    }
    let step = embeddings.step();
    println!("rank {rank} of {workers}: step {step}, at most {furthest:.3} from the targets");
    Ok(())
}

/// How far rows are from their targets, which is the gradient of half its square.
fn difference(keys: &[u64], rows: &[f32]) -> Vec<f32> {
    let target = |key: u64| key as f32 / ROWS as f32;
    let each = keys.iter().zip(rows.chunks(WIDTH));
    each.flat_map(|(key, row)| row.iter().map(|element| element - target(*key))).collect()
}
