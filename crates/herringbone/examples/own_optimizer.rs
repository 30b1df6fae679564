//! A table server with an optimizer of its own: FTRL-Proximal (McMahan et al., KDD 2013), which keeps most weights of sparse
//! linear models at exactly 0.
//!
//! ```sh
//! cargo build -p herringbone --example own_optimizer
//! target/debug/examples/own_optimizer 127.0.0.1:7071 &
//! HERRINGBONE_TABLES=127.0.0.1:7071 python train.py     # servers.table(..., optimizer="own:ftrl")
//! ```
//!
//! Of the table's numbers it takes `learning_rate` (alpha), `epsilon` (beta), `wd` (the L1 penalty) and `rho` (the L2 penalty).

use herringbone::{
    core::table::OptimizerParameter,
    server::{Server, ServerOptions},
    table::{OwnOptimizer, RowStep, TableOptions},
};
use std::{error::Error, net::SocketAddr, sync::Arc};

#[derive(Debug)]
struct Ftrl;

macro_rules! ftrl {
    ($name:ident, $real:ty) => {
        fn $name(&self, step: RowStep<'_, $real>) {
            let RowStep { row, state, gradient, optimizer, .. } = step;
            let number = |parameter| optimizer.number(parameter) as $real;
            let (alpha, beta) =
                (number(OptimizerParameter::LearningRate), number(OptimizerParameter::Epsilon));
            let (l1, l2) = (number(OptimizerParameter::WeightDecay), number(OptimizerParameter::Rho));
            if alpha == 0.0 {
                return;
            }
            let (z, n) = state.split_at_mut(row.len());
            for ((weight, gradient), (z, n)) in row.iter_mut().zip(gradient).zip(z.iter_mut().zip(n)) {
                let before = n.sqrt();
                *n += gradient * gradient;
                *z += gradient - (n.sqrt() - before) / alpha * *weight;
                *weight = match z.abs() <= l1 {
                    true => 0.0,
                    false => -(*z - z.signum() * l1) / ((beta + n.sqrt()) / alpha + l2),
                };
            }
        }
    };
}

impl OwnOptimizer for Ftrl {
    fn name(&self) -> &str {
        "ftrl"
    }

    fn planes(&self) -> usize {
        2
    }

    ftrl!(step_f32, f32);
    ftrl!(step_f64, f64);
}

fn main() -> Result<(), Box<dyn Error>> {
    let listen = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let listen: SocketAddr = listen.parse()?;
    let transport = herringbone::transport_from_env()?;
    let tables = TableOptions { optimizers: vec![Arc::new(Ftrl)], transport, ..TableOptions::default() };
    let token = std::env::var("HERRINGBONE_TOKEN").ok();
    let server = Server::bind(ServerOptions { token, tables: Some(tables), ..ServerOptions::new(listen) })?;
    println!("listening on {}", server.address());
    server.run();
    Ok(())
}
