//! Running an all-reduce that nobody has checked: the control. Sums of f32, each program in order.

use crate::draft::{Draft, DraftStep};
use herringbone_core::schedule::{Origin, Place, Rank, Source};
use std::collections::{HashMap, VecDeque};

type Values = Vec<f32>;
type Lanes = HashMap<(Rank, Rank), VecDeque<Values>>;
type Places = HashMap<Place, Values>;

/// The outputs; `None` if it does not end, or does what no machine can do. Each input has `count` elements, and a worker has several
/// one after the other, or one.
pub(crate) fn run_unchecked(draft: &Draft, count: usize, inputs: &[Values]) -> Option<Vec<Values>> {
    let draft = &draft.chunk_by_chunk();
    let chunks = 0..draft.cut.chunks();
    let of_input = |(at, input): (u32, &[f32])| {
        let place = move |c| Place::User(at * draft.cut.chunks() + c);
        let chunk = |c| (place(c), input[draft.cut.range(c, count, 4)].to_vec());
        chunks.clone().map(chunk).collect::<Vec<_>>()
    };
    let user = |inputs: &Values| match count {
        0 => (0..draft.most_inputs).flat_map(|at| of_input((at, &[]))).collect(),
        _ => (0..).zip(inputs.chunks(count)).flat_map(of_input).collect(),
    };
    let mut places: Vec<Places> = inputs.iter().map(user).collect();
    places.resize_with(draft.programs.len(), Places::new);
    let mut lanes = Lanes::new();
    let mut at = vec![0; places.len()];
    loop {
        let before = at.clone();
        for rank in 0..places.len() {
            while let Some(step) = draft.programs[rank].steps.get(at[rank]) {
                let step = &step.step;
                if !has_messages(step, rank as Rank, &lanes) {
                    break;
                }
                run(step, rank as Rank, &mut places[rank], &mut lanes)?;
                at[rank] += 1;
            }
        }
        if at == before {
            break;
        }
    }
    let ended = (0..at.len()).all(|rank| at[rank] == draft.programs[rank].steps.len());
    let output = |places: &Places| chunks.clone().flat_map(|c| places[&Place::User(c)].clone()).collect();
    ended.then(|| places[..inputs.len()].iter().map(output).collect())
}

fn has_messages(step: &DraftStep, rank: Rank, lanes: &Lanes) -> bool {
    let waiting = |lane: Rank| lanes.get(&(lane, rank)).map_or(0, VecDeque::len);
    match step {
        DraftStep::Recv { lane, .. } => waiting(*lane) > 0,
        DraftStep::Fold { from, .. } => {
            let heads: Vec<Rank> = from.iter().filter_map(head).collect();
            heads.iter().all(|lane| waiting(*lane) >= heads.iter().filter(|other| *other == lane).count())
        }
        DraftStep::Decode { from: Origin::Head { lane, .. }, .. } => waiting(*lane) > 0,
        DraftStep::Send { .. }
        | DraftStep::Copy { .. }
        | DraftStep::Encode { .. }
        | DraftStep::Decode { .. } => true,
    }
}

fn head(source: &Source) -> Option<Rank> {
    match source.from {
        Origin::Head { lane, .. } => Some(lane),
        Origin::At(_) => None,
    }
}

fn run(step: &DraftStep, rank: Rank, places: &mut Places, lanes: &mut Lanes) -> Option<()> {
    let (into, values) = match step {
        DraftStep::Send { from, to } => {
            for to in to {
                lanes.entry((rank, *to)).or_default().push_back(places.get(from)?.clone());
            }
            return Some(());
        }
        DraftStep::Recv { lane, into, .. } => (into, lanes.get_mut(&(*lane, rank))?.pop_front()?),
        // With a codec that codes nothing.
        DraftStep::Copy { from, into }
        | DraftStep::Encode { from, into }
        | DraftStep::Decode { from: Origin::At(from), into, .. } => (into, places.get(from)?.clone()),
        DraftStep::Decode { from: Origin::Head { lane, .. }, into, .. } => {
            (into, lanes.get_mut(&(*lane, rank))?.pop_front()?)
        }
        DraftStep::Fold { from, into, .. } => {
            let mut stack: Vec<Values> = Vec::new();
            for source in from {
                let mut top = match source.from {
                    Origin::At(place) => places.get(&place)?.clone(),
                    Origin::Head { lane, .. } => lanes.get_mut(&(lane, rank))?.pop_front()?,
                };
                for _ in 0..source.merges {
                    top = add(stack.pop()?, &top)?;
                }
                stack.push(top);
            }
            (into, stack.pop()?)
        }
    };
    let fits = !matches!(into, Place::User(_)) || places.get(into)?.len() == values.len();
    fits.then(|| drop(places.insert(*into, values)))
}

fn add(a: Values, b: &Values) -> Option<Values> {
    (a.len() == b.len()).then(|| a.iter().zip(b).map(|(a, b)| a + b).collect())
}
