//! Optimizers that servers have beside the others.

use super::{Servers, problem, sync};
use crate::{
    core::table::{OptimizerKind, OptimizerParameter, OptimizerSpec, TableError, TableSpec},
    table::{OwnOptimizer, RowStep, TableOptions},
};
use std::sync::Arc;

/// Adagrad, written as a user would.
#[derive(Debug)]
struct Written;

macro_rules! adagrad {
    ($name:ident, $real:ty) => {
        fn $name(&self, step: RowStep<'_, $real>) {
            let RowStep { row, state, gradient, optimizer, .. } = step;
            let number = |parameter| optimizer.number(parameter) as $real;
            let (rate, epsilon) =
                (number(OptimizerParameter::LearningRate), number(OptimizerParameter::Epsilon));
            for ((weight, gradient), history) in row.iter_mut().zip(gradient).zip(state) {
                *history += gradient * gradient;
                *weight -= rate * gradient / (history.sqrt() + epsilon);
            }
        }
    };
}

impl OwnOptimizer for Written {
    fn name(&self) -> &str {
        "written"
    }

    fn planes(&self) -> usize {
        1
    }

    adagrad!(step_f32, f32);
    adagrad!(step_f64, f64);
}

#[test]
fn an_own_optimizer_has_the_bits_of_the_one_that_it_copies() {
    let options = TableOptions { optimizers: vec![Arc::new(Written)], ..TableOptions::default() };
    let servers = Servers::with(2, &options);
    let worker = servers.worker(0, 1);
    let spec = |name: &str| {
        let optimizer = OptimizerSpec::of(OptimizerKind::from_name(name).unwrap());
        let optimizer = optimizer.with("epsilon", 1e-7).unwrap().with("rescale_grad", 0.25).unwrap();
        TableSpec { optimizer: optimizer.with("clip_gradient", 100.0).unwrap(), ..sync(50, 3) }
    };
    let tables = ["own:written", "adagrad"].map(|name| worker.table(name, spec(name)).unwrap());
    let rows = tables.each_ref().map(|table| {
        for step in 0..4 {
            let gradients: Vec<f32> = (0..150).map(|at| super::awkward(0, step, at)).collect();
            table.push_range(0, &gradients, false).unwrap();
            // The learning rate changes while it runs.
            table.tune("learning_rate", 0.01 / (step + 1) as f64).unwrap();
        }
        let mut rows = vec![0.0_f32; 150];
        table.pull_range(0, &mut rows).unwrap();
        rows
    });
    assert_eq!(rows[0], rows[1]);
    assert!(rows[0].iter().all(|value| *value != 0.0));
}

#[test]
fn a_server_that_lacks_an_optimizer_says_so_and_goes_on() {
    let servers = Servers::start(1);
    let worker = servers.worker(0, 1);
    let own = OptimizerSpec::of(OptimizerKind::from_name("own:written").unwrap());
    let error = worker.table("t", TableSpec { optimizer: own, ..sync(5, 1) }).unwrap_err();
    match problem(&error) {
        TableError::Unusable(what) => assert!(what.contains("no optimizer own:written"), "{what}"),
        other => panic!("{other}"),
    }
    worker.table("t", sync(5, 1)).unwrap().push_range(0, &[1.0_f32; 5], false).unwrap();
}
