//! Constants of the machines that a group runs on, from calls and codes that were timed there.

use crate::{
    Communicator, DType, Error, ErrorKind, ReduceOp, Result,
    core::{
        algorithm::Algorithm,
        codec::{BLOCK, Codec},
        collective::Collective,
        plan::{
            Request,
            fitting::{Fitted, TimedCall, fit},
        },
        simulate::Calibration,
    },
    execute::coding,
    feedback::{Fed, Feedback},
    sys::span::Span,
};
use std::{
    sync::Arc,
    thread::available_parallelism,
    time::{Duration, Instant},
};

/// A timed all-reduce: sums of f32, of `bytes` bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimedAllReduce {
    /// The size of each rank's buffer.
    pub bytes: usize,
    /// The algorithm that it took.
    pub algorithm: Algorithm,
    /// The time of a call.
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
        let group = engine.runtime.groups.get_mut(engine.current(handle.number()));
        group.map(|group| group.settings.clone()).ok_or_else(|| Error::new(ErrorKind::Closed))
    })?;
    let cores = available_parallelism().map_or(1, |cores| cores.get() as u32);
    if start.shared_cores == 0 && settings.sizing.hosts == 1 && settings.workers() > cores {
        start.shared_cores = cores;
    }
    if let Some(latency) = settings.guided().latency.filter(|_| start.latency == Calibration::DEFAULT.latency)
    {
        // A fit goes no farther than some times what it begins with.
        start.latency = latency;
    }
    let (group, wiring) = (settings.sums.fold.clone(), settings.wiring());
    let request = |call: &TimedAllReduce| {
        let count = call.bytes / DType::F32.bytes();
        Request {
            reducers: settings.reducers(),
            hosts: &settings.hosts,
            links: wiring.links.as_ref(),
            ports: wiring.ports.as_ref(),
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

/// The elements of a message that is coded to be timed, and how many such messages.
const MESSAGE: usize = 8 * BLOCK;
const MESSAGES: usize = 64;
/// How often they are; the fastest time counts.
const ROUNDS: usize = 5;

/// Times [`Codec::Int8`] on this machine, in one thread as operations do it: with feedback, from memory to memory.
/// Returns the bytes of f32 that are encoded in a second, and the bytes that are decoded. It takes some tenths of a
/// second.
pub fn coding_rates() -> (u64, u64) {
    let elements = MESSAGES * MESSAGE;
    let value = |at: usize| ((at * 7919) % 4093) as f32 / 4093.0 - 0.5;
    let mut plain: Vec<u8> = (0..elements).flat_map(|at| value(at).to_le_bytes()).collect();
    let bound = Codec::Int8.bound(MESSAGE);
    let mut slots = vec![0; MESSAGES * bound];
    let feedback = Arc::new(Feedback::of(0, vec![0.0; elements]));
    let (plain, slots) = (Span::of(&mut plain), Span::of(&mut slots));
    let bytes = size_of_val(&[0.0f32; MESSAGE]);
    let message =
        |at: usize| (plain.slice(at * bytes..(at + 1) * bytes), slots.slice(at * bound..(at + 1) * bound));
    // By message: other programs can only make one slower.
    let mut fastest = [[Duration::MAX; 2]; MESSAGES];
    for _ in 0..ROUNDS {
        let fed = Fed::next(&feedback);
        for (at, fastest) in fastest.iter_mut().enumerate() {
            let (plain, slot) = message(at);
            let began = Instant::now();
            coding::encode(Codec::Int8, plain, at * MESSAGE..(at + 1) * MESSAGE, slot, Some(&fed));
            fastest[0] = fastest[0].min(began.elapsed());
        }
        for (at, fastest) in fastest.iter_mut().enumerate() {
            let (plain, slot) = message(at);
            let began = Instant::now();
            coding::decode(Codec::Int8, slot, plain);
            fastest[1] = fastest[1].min(began.elapsed());
        }
        fed.end(true);
    }
    let rate = |way: usize| {
        let time: Duration = fastest.iter().map(|fastest| fastest[way]).sum();
        ((bytes * MESSAGES) as f64 / time.as_secs_f64().max(1e-9)) as u64
    };
    (rate(0), rate(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_codes_at_some_rate() {
        let (encode, decode) = coding_rates();
        assert!((1_000_000..1_000_000_000_000).contains(&encode), "{encode} B/s");
        assert!((1_000_000..1_000_000_000_000).contains(&decode), "{decode} B/s");
    }
}
