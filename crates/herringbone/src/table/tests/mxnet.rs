//! The optimizers with MXNet's own arithmetic, on servers.

use super::{Servers, awkward, sync};
use crate::{
    core::{
        element::DType,
        table::{OptimizerKind, OptimizerSpec, TableSpec},
    },
    table::LocalOptimizer,
};

#[test]
fn rows_have_the_bits_of_local_steps_on_any_number_of_servers() {
    let (rows, width, steps) = (7, 6_000, 4);
    for kind in [OptimizerKind::AdamWMxnet, OptimizerKind::Lamb, OptimizerKind::Ftrl, OptimizerKind::Signum] {
        let optimizer = OptimizerSpec::of(kind).with("wd", 0.01).unwrap().with("rescale_grad", 0.01).unwrap();
        let gradients = |step| -> Vec<f32> { (0..rows * width).map(|at| awkward(0, step, at)).collect() };
        let mut alone = vec![0.0_f32; rows * width];
        for (row, begin) in (0..rows * width).step_by(width).enumerate() {
            let mut local = LocalOptimizer::new(optimizer, DType::F32, width).unwrap();
            for step in 0..steps {
                let pushed = gradients(step);
                local.step(&mut alone[begin..begin + width], &pushed[begin..begin + width]).unwrap();
            }
            assert!(alone[begin..begin + width].iter().any(|weight| *weight != 0.0), "{kind}, row {row}");
        }
        for count in 1..=3 {
            let servers = Servers::start(count);
            let spec = TableSpec { optimizer, ..sync(rows as u64, width as u32) };
            let table = servers.worker(0, 1).table("t", spec).unwrap();
            for step in 0..steps {
                table.push_range(0, &gradients(step), false).unwrap();
            }
            let mut pulled = vec![0.0_f32; rows * width];
            table.pull_range(0, &mut pulled).unwrap();
            let same = pulled.iter().zip(&alone).all(|(one, other)| one.to_bits() == other.to_bits());
            assert!(same, "{kind} on {count} servers");
        }
    }
}

#[test]
fn the_trust_of_lamb_is_of_a_whole_row() {
    let servers = Servers::start(1);
    let optimizer = OptimizerSpec::of(OptimizerKind::Lamb).with("learning_rate", 1.0).unwrap();
    let table = servers.worker(0, 1).table("t", TableSpec { optimizer, ..TableSpec::new(2, 2) }).unwrap();
    let pulled = || {
        let mut rows = [0.0_f32; 4];
        table.pull_range(0, &mut rows).unwrap();
        rows
    };
    table.tune("assigns", 1.0).unwrap();
    table.push_range(0, &[3.0_f32, 4.0, 0.0, 0.0], false).unwrap();
    table.tune("assigns", 0.0).unwrap();
    // Each element's direction is 1, so the first row goes as far as it is long, and the row of norm 0 by the rate.
    table.push_range(0, &[1e3_f32; 4], false).unwrap();
    let side = 5.0 / 2.0_f32.sqrt();
    let expected = [3.0 - side, 4.0 - side, -1.0, -1.0];
    let is_near = |rows: [f32; 4]| rows.iter().zip(expected).all(|(one, other)| (one - other).abs() < 1e-4);
    assert!(is_near(pulled()), "{:?}", pulled());
}
