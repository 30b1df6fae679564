//! Data-parallel training: each process fits a line to points of its own, and all of them average their gradients.
//!
//! ```sh
//! cargo build -p herringbone --example all_reduce
//! herringbone launch -n 4 -- target/debug/examples/all_reduce
//! ```
//! Any other launcher that says `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT` does as well.

use herringbone::{Communicator, Error, ReduceOp};

const POINTS: u32 = 100;
const STEPS: usize = 300;
const RATE: f32 = 0.5;

fn main() -> Result<(), Error> {
    let group = Communicator::from_env()?;
    let points = points(group.rank(), group.size());
    let mut line = [0.0, 0.0];
    for _ in 0..STEPS {
        let mut gradient = gradient(line, &points);
        group.all_reduce(&mut gradient, ReduceOp::Average)?;
        line = [line[0] - RATE * gradient[0], line[1] - RATE * gradient[1]];
    }
    // Every rank has the same bits, so no rank needs to send its line to the others.
    println!("rank {} of {}: y = {:.2} x + {:.2}", group.rank(), group.size(), line[0], line[1]);
    group.close()
}

/// Points of y = 3 x + 1, every rank's another part of them.
fn points(rank: u32, size: u32) -> Vec<[f32; 2]> {
    let x = |at: u32| (rank + at * size) as f32 / (POINTS * size) as f32;
    (0..POINTS).map(|at| [x(at), 3.0 * x(at) + 1.0]).collect()
}

/// Of the mean squared error, by the line's slope and its height.
fn gradient([slope, height]: [f32; 2], points: &[[f32; 2]]) -> [f32; 2] {
    let mut gradient = [0.0, 0.0];
    for [x, y] in points {
        let error = slope * x + height - y;
        gradient[0] += 2.0 * error * x;
        gradient[1] += 2.0 * error;
    }
    gradient.map(|sum| sum / points.len() as f32)
}
