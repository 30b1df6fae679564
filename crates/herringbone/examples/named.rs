//! Operations with names: on each rank gradients become ready in another order, and all ranks run them in the same one.
//!
//! ```sh
//! cargo build -p herringbone --example named
//! herringbone launch -n 3 -- target/debug/examples/named
//! ```

use herringbone::{
    Communicator, DType, NamedController, NamedOptions, NamedSubmission, ReduceOp, Region,
    core::{
        codec::Codec,
        named::{NamedCall, NamedKind, NamedRequest},
    },
};
use std::error::Error;

const LAYERS: u32 = 8;
const ELEMENTS: usize = 1000;

fn main() -> Result<(), Box<dyn Error>> {
    let group = Communicator::from_env()?;
    let (rank, size) = (group.rank(), group.size());
    let controller = NamedController::new(&group, &NamedOptions::default())?;
    // All are submitted before the first is waited for: those that are ready on all ranks travel as one.
    let mut running = Vec::new();
    for at in 0..LAYERS {
        let layer = (at + rank) % LAYERS;
        let gradient = Region::own(vec![(layer * rank) as f32; ELEMENTS]);
        let work = controller.submit(sum_of(&format!("layer {layer}"), gradient.region()))?;
        running.push((layer, gradient, work));
    }
    let ranks: u32 = (0..size).sum();
    for (layer, gradient, work) in running {
        work.wait()?;
        assert_eq!(gradient.take(), [(layer * ranks) as f32; ELEMENTS]);
    }
    controller.shut_down();
    println!("rank {rank} of {size}: {LAYERS} sums");
    Ok(group.close()?)
}

/// What is asked for under a name: the sum of a tensor of f32, in its place.
fn sum_of(name: &str, tensor: &Region) -> NamedSubmission {
    let call = NamedCall {
        kind: NamedKind::AllReduce,
        dtype: DType::F32,
        op: ReduceOp::Sum,
        shape: vec![ELEMENTS as u64],
        root: 0,
        prescale: 1.0,
        postscale: 1.0,
        codec: Codec::Plain,
    };
    NamedSubmission {
        request: NamedRequest { name: name.to_owned(), call, group: None, priority: 0 },
        input: tensor.clone(),
        output: Some(tensor.clone()),
        splits: None,
        residuals: None,
    }
}
