//! Constants of the machines that a group runs on, from calls that were timed there.

use crate::{
    Communicator, DType, Error, ErrorKind, ReduceOp, Result,
    core::{
        algorithm::Algorithm,
        collective::Collective,
        plan::{
            Request,
            fitting::{Fitted, TimedCall, fit},
        },
        simulate::Calibration,
    },
};
use std::{thread::available_parallelism, time::Duration};

/// An all-reduce that was timed: sums of so many bytes of f32.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimedAllReduce {
    /// Of each rank's buffer.
    pub bytes: usize,
    /// The algorithm that it took.
    pub algorithm: Algorithm,
    /// What a call took.
    pub time: Duration,
}

/// Fits constants to the times of calls of `communicator`'s group, beginning with `start`: predictions by them come near to
/// the times. It takes seconds, and only this rank works. With `knows_ports` the rates of ports are right already. `shown`
/// hears of each of [`FIT_ROUNDS`](crate::core::plan::fitting::FIT_ROUNDS) rounds.
///
/// # Errors
/// [`ErrorKind::Unsupported`] if an algorithm cannot do a call, [`ErrorKind::Closed`] if the group has ended.
pub fn fit_constants(
    communicator: &Communicator,
    timed: &[TimedAllReduce],
    mut start: Calibration,
    knows_ports: bool,
    shown: impl FnMut(),
) -> Result<Fitted> {
    let (fabric, handle) = communicator.parts();
    let settings = fabric.node.with(|engine| {
        let group = engine.groups.get_mut(engine.current(handle.number()));
        group.map(|group| group.settings.clone()).ok_or_else(|| Error::new(ErrorKind::Closed))
    })?;
    let cores = available_parallelism().map_or(1, |cores| cores.get() as u32);
    if start.shared_cores == 0 && settings.sizing.hosts == 1 && settings.workers() > cores {
        start.shared_cores = cores;
    }
    let (group, links) = (settings.parameters.order.group(&settings.hosts), settings.links());
    let request = |call: &TimedAllReduce| {
        let count = call.bytes / DType::F32.bytes();
        Request {
            reducers: settings.reducers(),
            hosts: &settings.hosts,
            links: links.as_ref(),
            ..Request::of_elements(Collective::AllReduce, DType::F32, ReduceOp::Sum, count, &group)
        }
    };
    let measured = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).saturating_mul(1000);
    let timed: Vec<_> = timed
        .iter()
        .map(|call| TimedCall {
            request: request(call),
            algorithm: call.algorithm.clone(),
            measured: measured(call.time),
        })
        .collect();
    fit(&timed, settings.sizing, start, knows_ports, shown).map_err(Error::unsupported)
}
