//! A record in the form of PyTorch's flight recorder, for `torchfrtrace` (`torch.distributed.flight_recorder`).
//!
//! The fields are the same as in `FlightRecorder.hpp` of PyTorch 2.15. The reader's treatment of them decides how some
//! are filled:
//!
//! * Names of operations begin with `nccl:`, as this is the only library that the reader of every release knows.
//! * `collective_seq_id` is the number that errors name: of the operation in its group, from 0.
//! * The reader expects an operation of all ranks of its group. So messages are in groups of their own, one for each sender,
//!   receiver and tag, in which both ends of a message have one number.
//! * Failed operations keep their state at the time of the failure, as that library's operations do: `started` or
//!   `scheduled`.

use super::value::{FlightValue, map};
use crate::core::{
    collective::Collective,
    element::DType,
    session::flight::{FlightCall, FlightGroup, FlightOperation, FlightRecord, FlightState},
    wire::Fingerprint,
};
use std::collections::BTreeMap;

/// Which version of torch's format it is.
const VERSION: &str = "2.10";

/// A record as a pickle for `torchfrtrace`, which wants a file of this of each rank, named by a common prefix and the rank.
pub fn torch_pickle(record: &FlightRecord) -> Vec<u8> {
    let mut groups = TorchGroups::default();
    let operations = record.operations.iter();
    let entries = operations.filter_map(|operation| groups.entry(record, operation)).collect();
    let listed = record.groups.iter().filter(|group| !group.ranks.is_empty());
    let (mut configs, mut states) = (Vec::new(), Vec::new());
    for group in listed {
        configs.push((group.name.clone(), config(&group.name, &described(group), &group.ranks)));
        states.push((group.name.clone(), standing(record, group)));
    }
    configs.extend(groups.pairs.into_iter().map(|(name, pair)| {
        let config = config(&name, MESSAGES, &pair.ranks);
        (name, config)
    }));
    map([
        ("version", VERSION.into()),
        ("pg_config", FlightValue::Map(configs)),
        ("pg_status", FlightValue::Map(states)),
        ("entries", FlightValue::List(entries)),
        ("rank", record.rank.into()),
        ("host_name", record.host.as_str().into()),
        ("herringbone_version", record.version.as_str().into()),
        ("herringbone_job", FlightValue::Text(format!("{:016x}", record.job))),
    ])
    .pickle()
}

const MESSAGES: &str = "messages";

/// What torch says of a group of which the program says nothing.
const UNDEFINED: &str = "undefined";

fn described(group: &FlightGroup) -> String {
    if group.description.is_empty() { UNDEFINED.to_owned() } else { group.description.clone() }
}

fn config(name: &str, description: &str, ranks: &[u32]) -> FlightValue {
    map([
        ("name", name.into()),
        ("desc", description.into()),
        ("ranks", FlightValue::Text(format!("{ranks:?}"))),
    ])
}

/// The last operations of a group that were called, began and ended; -1 for none.
fn standing(record: &FlightRecord, group: &FlightGroup) -> FlightValue {
    let last = |is_so: &dyn Fn(&FlightOperation) -> bool| {
        let of_it =
            record.operations.iter().filter(|operation| operation.group == group.group && is_so(operation));
        let numbers = of_it.filter_map(|operation| match &operation.call {
            FlightCall::Collective { call, .. } => Some(call.sequence),
            FlightCall::Message { .. } => None,
        });
        FlightValue::Whole(numbers.max().map_or(-1, |last| last.try_into().unwrap_or(i64::MAX)))
    };
    map([
        ("last_enqueued_collective", last(&|_| true)),
        ("last_started_collective", last(&|operation| operation.began.is_some())),
        ("last_completed_collective", last(&|operation| operation.state == FlightState::Done)),
    ])
}

/// The messages from one rank to another with one tag.
struct MessagePair {
    ranks: Vec<u32>,
    /// The number of the next receive that has got no message.
    next: u64,
}

/// The groups of messages.
#[derive(Default)]
struct TorchGroups {
    pairs: BTreeMap<String, MessagePair>,
}

/// How an operation is listed.
struct TorchEntry {
    /// The name and the description of its group.
    group: [String; 2],
    name: String,
    sequence: u64,
    is_message: bool,
    dtype: Option<DType>,
    input: Option<u64>,
    output: Option<u64>,
}

impl TorchGroups {
    /// An operation of a group of which the ranks are known.
    fn entry(&mut self, record: &FlightRecord, operation: &FlightOperation) -> Option<FlightValue> {
        let group = record.group(operation.group).filter(|group| !group.ranks.is_empty())?;
        let me = group.ranks.iter().position(|rank| *rank == record.rank)? as u32;
        let listed = match &operation.call {
            FlightCall::Collective { call, .. } => collective(group, me, call)?,
            FlightCall::Message { .. } => self.message(group, me, operation)?,
        };
        Some(entry(record, operation, listed))
    }

    /// A message. A receive that has got none waits for the next one; one from any rank belongs to nobody before.
    fn message(&mut self, group: &FlightGroup, me: u32, operation: &FlightOperation) -> Option<TorchEntry> {
        let FlightCall::Message { receives, peer, tag, sequence, dtype, count } = operation.call else {
            return None;
        };
        let [from, to] = if receives { [peer?, me] } else { [me, peer?] };
        let name = match tag {
            0 => format!("{}: {from} to {to}", group.name),
            tag => format!("{}: {from} to {to}, tag {tag}", group.name),
        };
        let of = |rank: u32| group.ranks.get(rank as usize).copied();
        let (from, to) = (of(from)?, of(to)?);
        let mut ranks = vec![from.min(to), from.max(to)];
        ranks.dedup();
        let pair =
            self.pairs.entry(name.clone()).or_insert_with(|| MessagePair { ranks: ranks.clone(), next: 0 });
        let sequence = sequence.unwrap_or(pair.next);
        pair.next = pair.next.max(sequence.saturating_add(1));
        // By places within the group of the two.
        let place = |rank: u32| u32::from(rank != ranks[0]);
        let (from, to) = (place(from), place(to));
        let name_of_call = match receives {
            true => format!("nccl:recv {to}<-{from}"),
            false => format!("nccl:send {from}->{to}"),
        };
        Some(TorchEntry {
            group: [name, MESSAGES.to_owned()],
            name: name_of_call,
            sequence,
            is_message: true,
            dtype: DType::from_code(dtype),
            input: Some(count),
            output: Some(count),
        })
    }
}

fn collective(group: &FlightGroup, me: u32, call: &Fingerprint) -> Option<TorchEntry> {
    let call = call.runs();
    let collective = Collective::from_code(call.collective, call.root)?;
    let workers = group.ranks.len() as u32;
    let count = usize::try_from(call.count).ok().filter(|_| call.count != Fingerprint::UNEVEN);
    let name = match collective {
        Collective::AllGather if count.is_none() => "all_gather_v",
        Collective::ReduceScatter if count.is_none() => "reduce_scatter_v",
        Collective::AllGather => "_all_gather_base",
        Collective::ReduceScatter => "_reduce_scatter_base",
        Collective::Barrier => "all_reduce_barrier",
        other => other.name(),
    };
    Some(TorchEntry {
        group: [group.name.clone(), described(group)],
        name: format!("nccl:{name}"),
        sequence: call.sequence,
        is_message: false,
        dtype: DType::from_code(call.dtype),
        input: count.map(|count| collective.input_elements(workers, me, count) as u64),
        output: count.map(|count| collective.output_elements(workers, me, count) as u64),
    })
}

fn entry(record: &FlightRecord, operation: &FlightOperation, listed: TorchEntry) -> FlightValue {
    let TorchEntry { group: [group, description], name, sequence, is_message, dtype, input, output } = listed;
    let at = |moment: u64| record.clock.realtime_at(moment);
    // Parts that may differ in length have none that is everybody's.
    let sizes = |count: Option<u64>| FlightValue::List(vec![count.into_iter().collect()]);
    let dtypes = || FlightValue::List(vec![dtype.map_or("Undefined", of_torch).into()]);
    map([
        ("frames", FlightValue::List(Vec::new())),
        ("record_id", operation.number.into()),
        ("pg_id", operation.group.into()),
        (
            "process_group",
            FlightValue::Pair(Box::new([FlightValue::Text(group), FlightValue::Text(description)])),
        ),
        ("collective_seq_id", sequence.into()),
        ("p2p_seq_id", if is_message { sequence } else { 0 }.into()),
        ("op_id", operation.number.into()),
        ("profiling_name", FlightValue::Text(name)),
        ("time_created_ns", at(operation.issued).into()),
        ("input_sizes", sizes(input)),
        ("input_dtypes", dtypes()),
        ("output_sizes", sizes(output)),
        ("output_dtypes", dtypes()),
        ("state", state(operation).into()),
        ("time_discovered_started_ns", operation.began.map(at).into()),
        ("time_discovered_completed_ns", operation.ended.filter(|_| is_done(operation)).map(at).into()),
        ("retired", FlightValue::Truth(operation.ended.is_some())),
        ("timeout_ms", FlightValue::Nothing),
        ("is_p2p", FlightValue::Truth(is_message)),
    ])
}

fn is_done(operation: &FlightOperation) -> bool {
    operation.state == FlightState::Done
}

fn state(operation: &FlightOperation) -> &'static str {
    match operation.state {
        FlightState::Done => "completed",
        FlightState::Queued => "scheduled",
        FlightState::Running | FlightState::Failed { .. } => "started",
    }
}

/// The name of torch's type.
fn of_torch(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "Float",
        DType::F64 => "Double",
        DType::F16 => "Half",
        DType::Bf16 => "BFloat16",
        DType::I8 => "Char",
        DType::U8 => "Byte",
        DType::I32 => "Int",
        DType::I64 => "Long",
        DType::I16 => "Short",
        DType::U16 => "UInt16",
        DType::U32 => "UInt32",
        DType::U64 => "UInt64",
    }
}
