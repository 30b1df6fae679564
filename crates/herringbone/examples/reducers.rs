//! A process that has no data and adds up for those that have some: `serve` makes this program a reducer, and without it the
//! program is a worker, whose gradients go up once and come down once.
//!
//! ```sh
//! cargo build -p herringbone --example reducers
//! target/debug/examples/reducers serve 127.0.0.1:7070 &
//! export HERRINGBONE_REDUCERS=127.0.0.1:7070 HERRINGBONE_ALGORITHM=reduction_server
//! herringbone launch -n 3 -- target/debug/examples/reducers
//! ```
//! The reducer serves one job after the other, and several at once. It ends with its standard input.

use herringbone::{
    Collective, Communicator, DType, ReduceOp,
    server::{Server, ServerOptions},
};
use std::{env, error::Error, io, thread};

const ELEMENTS: usize = 1 << 18;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => work(),
        ["serve", address] => serve(address),
        _ => Err("arguments: none for a worker, or `serve ADDRESS`".into()),
    }
}

fn work() -> Result<(), Box<dyn Error>> {
    let group = Communicator::from_env()?;
    if group.rank() == 0 {
        // Why it is planned like that, and which other ways there are.
        eprintln!("{}", group.explain(Collective::AllReduce, DType::F32, ELEMENTS)?);
    }
    let mut gradient = vec![group.rank() as f32; ELEMENTS];
    group.all_reduce(&mut gradient, ReduceOp::Sum)?;
    let moved = group.stats().reducers_tcp;
    let (rank, sum) = (group.rank(), gradient[0]);
    println!("rank {rank}: a sum of {sum}; {} bytes to reducers, {} from them", moved.sent, moved.received);
    Ok(group.close()?)
}

fn serve(address: &str) -> Result<(), Box<dyn Error>> {
    let options =
        ServerOptions { token: env::var("HERRINGBONE_TOKEN").ok(), ..ServerOptions::new(address.parse()?) };
    let server = Server::bind(options)?;
    let stop = server.stop();
    println!("listening at {}", server.address());
    thread::spawn(move || {
        let _end = io::copy(&mut io::stdin(), &mut io::sink());
        stop.stop();
    });
    server.run();
    println!("served {} jobs", server.stats().served);
    Ok(())
}
