//! What ranks call, and whether it came out right, to the bit.

use crate::{
    Collective, DType, Error, ReduceOp,
    clock::Moment,
    completion::Completion,
    core::prepare::Call,
    core::{algorithm::Layout, group::Group, interpret::interpret, plan, verify::verify},
    sys::region::Owned,
    transport::tcp::virtual_link::Dice,
};
use std::{rc::Rc, sync::Arc};

/// One call of all ranks: what goes in, and what must come out.
pub(crate) struct Task {
    pub(crate) call: Call,
    pub(crate) inputs: Vec<Vec<u8>>,
    pub(crate) expected: Vec<Vec<u8>>,
    /// Whether the output is the input.
    pub(crate) in_place: bool,
}

/// A call that a rank has made.
pub(crate) struct Called {
    pub(super) group: u32,
    pub(super) task: Rc<Task>,
    pub(super) rank: usize,
    pub(super) completion: Option<Arc<Completion>>,
    /// The input and the output, while they are lent.
    pub(super) buffers: Option<(Owned<u8>, Owned<u8>)>,
    pub(crate) ended: Option<(Moment, Result<(), Error>)>,
    /// What was wrong with the result when it ended.
    pub(super) wrong: Option<String>,
}

impl Task {
    /// A call on random bits. The reference is another schedule than engines with reducers choose.
    pub(crate) fn new(call: Call, workers: u32, dice: &mut Dice) -> Rc<Self> {
        let Call { collective, dtype, op, count } = call;
        let bytes = |rank| collective.input_elements(workers, rank, count) * dtype.bytes();
        let inputs: Vec<Vec<u8>> = (0..workers).map(|rank| random_bytes(bytes(rank), dice)).collect();
        let (group, hosts): (_, Vec<u32>) = (Group::of_size(workers), (0..workers).collect());
        let request = plan::Request {
            reducers: 0,
            hosts: &hosts,
            forced: None,
            ..plan::Request::of_elements(collective, dtype, op, count, &group)
        };
        let algorithm = plan::choose(&request).expect("an algorithm").algorithm;
        let layout = Layout { reducers: 0, hosts: &hosts, links: None };
        let schedule = algorithm.schedule(collective, &group, &layout).expect("a schedule");
        let verified = verify(schedule, collective, &group).expect("a proof");
        let seen: Vec<&[u8]> = inputs.iter().map(|input| &input[..]).collect();
        let expected = interpret(&verified, dtype, op, count, &seen).expect("inputs that fit");
        Rc::new(Self { call, inputs, expected, in_place: false })
    }

    /// A sum of so many numbers.
    pub(crate) fn sum(count: usize, workers: u32, dice: &mut Dice) -> Rc<Self> {
        let call = Call { collective: Collective::AllReduce, dtype: DType::F32, op: ReduceOp::Sum, count };
        Self::new(call, workers, dice)
    }

    /// Any call, of up to so many bytes.
    pub(crate) fn any(workers: u32, most: usize, dice: &mut Dice) -> Rc<Self> {
        let root = dice.below(u64::from(workers)) as u32;
        let collective = dice.pick(&[
            Collective::AllReduce,
            Collective::AllReduce,
            Collective::Reduce { root },
            Collective::Broadcast { root },
            Collective::ReduceScatter,
            Collective::AllGather,
            Collective::Gather { root },
            Collective::Scatter { root },
            Collective::AllToAll,
            Collective::Barrier,
        ]);
        let dtype = if collective.folds() { dice.pick(&DType::ALL) } else { DType::U8 };
        let ops: Vec<ReduceOp> = ReduceOp::ALL.into_iter().filter(|op| op.takes(dtype)).collect();
        let op = if collective.folds() { dice.pick(&ops) } else { ReduceOp::Sum };
        let of_root = |count| {
            let input = collective.input_elements(workers, root, count);
            input.max(collective.output_elements(workers, root, count))
        };
        let whole = of_root(1).max(1);
        // All orders of magnitude alike.
        let limit = 2u64 << dice.below(u64::from((most / dtype.bytes() / whole).max(1).ilog2()) + 1);
        let count = if collective == Collective::Barrier { 0 } else { 1 + dice.below(limit) as usize };
        Self::new(Call { collective, dtype, op, count }, workers, dice)
    }
}

fn random_bytes(bytes: usize, dice: &mut Dice) -> Vec<u8> {
    let mut random = Vec::with_capacity(bytes + 8);
    while random.len() < bytes {
        random.extend_from_slice(&dice.roll().to_le_bytes());
    }
    random.truncate(bytes);
    random
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
        let Self { task, rank, .. } = self;
        if input.take() != task.inputs[*rank] && !task.in_place {
            return Some(format!("{:?} has changed the input of rank {rank}", task.call));
        }
        let (collective, workers) = (task.call.collective, task.inputs.len() as u32);
        let has_result = collective.has_result(workers, *rank as u32);
        let wrong = output.take() != task.expected[*rank] && has_result;
        wrong.then(|| format!("{:?} has a wrong result on rank {rank}", task.call))
    }
}
