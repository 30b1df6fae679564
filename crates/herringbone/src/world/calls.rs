//! What ranks call, and whether it came out right, to the bit.

use crate::{
    Collective, DType, Error, ReduceOp,
    clock::Moment,
    completion::Completion,
    core::prepare::Call,
    core::{
        algorithm::{Algorithm, Layout},
        codec::Codec,
        group::Group,
        interpret::{Coding, interpret, interpret_coded},
        plan,
        verify::verify,
    },
    feedback::Feedback,
    sys::region::Owned,
    transport::tcp::virtual_link::Rng,
};
use std::{rc::Rc, sync::Arc};

/// One call of all ranks: what goes in, and what must come out.
pub(crate) struct Task {
    pub(crate) call: Call,
    pub(crate) inputs: Vec<Vec<u8>>,
    pub(crate) expected: Vec<Vec<u8>>,
    /// Whether the output is the input.
    pub(crate) in_place: bool,
    /// If the call's messages are coded, and what they lack is fed back.
    pub(crate) tensor: Option<TensorTask>,
}

/// A call on a tensor that is fed back.
pub(crate) struct TensorTask {
    /// Which tensor it is: that of all calls that share this.
    pub(crate) identity: Rc<()>,
    /// How many calls on it go before.
    pub(crate) steps: u64,
    /// What is left of it on each rank before the call, and after it.
    pub(crate) before: Vec<Vec<f32>>,
    after: Vec<Vec<f32>>,
}

/// A call that a rank has made.
pub(crate) struct Called {
    pub(super) group: u32,
    pub(super) task: Rc<Task>,
    pub(super) rank: usize,
    pub(super) completion: Option<Arc<Completion>>,
    /// The input and the output, while they are lent.
    pub(super) buffers: Option<(Owned<u8>, Owned<u8>)>,
    pub(super) feedback: Option<Arc<Feedback>>,
    pub(crate) ended: Option<(Moment, Result<(), Error>)>,
    /// What was wrong with the result when it ended.
    pub(super) wrong: Option<String>,
}

impl Task {
    /// A call on random bits. The reference is another schedule than engines with reducers choose.
    pub(crate) fn new(call: Call, workers: u32, rng: &mut Rng) -> Rc<Self> {
        Self::of_group(call, &Group::of_size(workers), rng)
    }

    /// The same, of workers whose sums are folded so.
    pub(crate) fn of_group(call: Call, group: &Group, rng: &mut Rng) -> Rc<Self> {
        let Call { collective, dtype, op, count, .. } = call;
        let workers = group.size();
        let bytes = |rank| collective.elements_of(group, rank, count) * dtype.bytes();
        let inputs: Vec<Vec<u8>> = (0..workers).map(|rank| random_bytes(bytes(rank), rng)).collect();
        let hosts: Vec<u32> = (0..workers).collect();
        let request = plan::Request {
            reducers: 0,
            hosts: &hosts,
            forced: None,
            ..plan::Request::of_elements(collective, dtype, op, count, group)
        };
        let algorithm = plan::choose(&request).expect("an algorithm").algorithm;
        let layout = Layout { reducers: 0, hosts: &hosts, links: None };
        let schedule = algorithm.schedule(collective, group, &layout).expect("a schedule");
        let verified = verify(schedule, collective, group).expect("a proof");
        let seen: Vec<&[u8]> = inputs.iter().map(|input| &input[..]).collect();
        let expected = interpret(&verified, dtype, op, count, &seen).expect("inputs that fit");
        Rc::new(Self { call, inputs, expected, in_place: false, tensor: None })
    }

    /// A sum of so many numbers.
    pub(crate) fn sum(count: usize, workers: u32, rng: &mut Rng) -> Rc<Self> {
        let call = Call::new(Collective::AllReduce, DType::F32, ReduceOp::Sum, count);
        Self::new(call, workers, rng)
    }

    /// A sum of so many numbers whose messages are coded, with what is left of them.
    pub(crate) fn coded(count: usize, workers: u32, rng: &mut Rng) -> Rc<Self> {
        let codec = rng.pick(&["int8", "topk:0.1", "twobit:0.5", "bf16", "randomk:0.2"]);
        Self::coded_by(codec, count, workers, rng)
    }

    /// The same with the codec of this name.
    pub(crate) fn coded_by(codec: &str, count: usize, workers: u32, rng: &mut Rng) -> Rc<Self> {
        let codec = codec.parse().expect("a codec");
        let before = (0..workers).map(|_| numbers(count, rng)).collect();
        Self::on_tensor(Rc::default(), codec, 0, before, rng)
    }

    /// The next call on the same tensor.
    pub(crate) fn next(&self, rng: &mut Rng) -> Rc<Self> {
        let TensorTask { identity, steps, after, .. } = self.tensor.as_ref().expect("a coded call");
        Self::on_tensor(identity.clone(), self.call.codec, steps + 1, after.clone(), rng)
    }

    fn on_tensor(
        identity: Rc<()>,
        codec: Codec,
        steps: u64,
        before: Vec<Vec<f32>>,
        rng: &mut Rng,
    ) -> Rc<Self> {
        let (workers, count, coding) = (before.len() as u32, before[0].len(), Coding { codec, steps });
        let group = Group::of_size(workers);
        let collective = Collective::AllReduce;
        let schedule = Algorithm::radix(Vec::new()).coded();
        let schedule = schedule.schedule(collective, &group, &Layout::default()).expect("a schedule");
        let verified = verify(schedule, collective, &group).expect("a proof");
        let mut input =
            |_| numbers(count, rng).iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>();
        let inputs: Vec<Vec<u8>> = (0..workers).map(&mut input).collect();
        let seen: Vec<&[u8]> = inputs.iter().map(|input| &input[..]).collect();
        let mut after = before.clone();
        let expected = interpret_coded(&verified, ReduceOp::Sum, count, coding, &seen, &mut after);
        let call = Call::new(collective, DType::F32, ReduceOp::Sum, count);
        let (call, expected) = (Call { codec, ..call }, expected.expect("inputs that fit"));
        let tensor = Some(TensorTask { identity, steps, before, after });
        Rc::new(Self { call, inputs, expected, in_place: rng.one_in(2), tensor })
    }

    /// Any call, of up to so many bytes.
    pub(crate) fn any(workers: u32, most: usize, rng: &mut Rng) -> Rc<Self> {
        let root = rng.below(u64::from(workers)) as u32;
        let all = Collective::all(root).into_iter().filter(|each| *each != Collective::Barrier);
        let all: Vec<Collective> =
            [Collective::AllReduce].into_iter().chain(all).chain([Collective::Barrier]).collect();
        let collective = rng.pick(&all);
        let dtype = if collective.folds() { rng.pick(&DType::ALL) } else { DType::U8 };
        let ops: Vec<ReduceOp> = ReduceOp::ALL.into_iter().filter(|op| op.takes(dtype)).collect();
        let op = if collective.folds() { rng.pick(&ops) } else { ReduceOp::Sum };
        let of_root = |count| {
            let input = collective.input_elements(workers, root, count);
            input.max(collective.output_elements(workers, root, count))
        };
        let whole = of_root(1).max(1);
        // All orders of magnitude alike.
        let limit = 2u64 << rng.below(u64::from((most / dtype.bytes() / whole).max(1).ilog2()) + 1);
        let count = if collective == Collective::Barrier { 0 } else { 1 + rng.below(limit) as usize };
        Self::new(Call::new(collective, dtype, op, count), workers, rng)
    }
}

fn random_bytes(bytes: usize, rng: &mut Rng) -> Vec<u8> {
    let mut random = Vec::with_capacity(bytes + 8);
    while random.len() < bytes {
        random.extend_from_slice(&rng.roll().to_le_bytes());
    }
    random.truncate(bytes);
    random
}

fn numbers(count: usize, rng: &mut Rng) -> Vec<f32> {
    (0..count).map(|_| rng.below(1 << 16) as f32 / 16384.0 - 2.0).collect()
}

impl Called {
    /// Notes that it has ended, if it has.
    pub(super) fn look(&mut self, now: Moment) {
        if self.ended.is_none() {
            let result = self.completion.as_ref().and_then(|completion| completion.result());
            self.ended = result.map(|result| (now, result));
            self.wrong = self.taken_back();
        }
    }

    /// What is wrong with the result, if it has one. As soon as it is there the buffers are the user's again: whatever still
    /// needs them has lost them.
    fn taken_back(&mut self) -> Option<String> {
        let Some((_, Ok(()))) = &self.ended else { return None };
        let (input, output) = self.buffers.take()?;
        let Self { task, rank, feedback, .. } = self;
        if input.take() != task.inputs[*rank] && !task.in_place {
            return Some(format!("{:?} has changed the input of rank {rank}", task.call));
        }
        let (collective, workers) = (task.call.collective, task.inputs.len() as u32);
        let has_result = collective.has_result(workers, *rank as u32);
        if let (Some(TensorTask { steps, after, .. }), Some(feedback)) = (&task.tensor, feedback) {
            let (complete, left) = feedback.committed();
            // A later call may be over already, which is looked at, too.
            if complete <= *steps || complete == steps + 1 && left != after[*rank] {
                return Some(format!("{:?} leaves something else on rank {rank}", task.call));
            }
        }
        let wrong = output.take() != task.expected[*rank] && has_result;
        wrong.then(|| format!("{:?} has a wrong result on rank {rank}", task.call))
    }
}
