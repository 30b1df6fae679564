//! The ring: the chunks of the first exchange, and the number of exchanges and their bytes.

use super::super::{
    figure::{ArticleClaim, How, Quantity},
    simulated::ProvenOperation,
};
use super::inputs::NotesInputs;
use crate::failure::Failure;
use herringbone::core::schedule::{Place, Step};

/// The claims about the ring.
pub(super) fn claims(inputs: &NotesInputs) -> Result<Vec<ArticleClaim>, Failure> {
    let gpus = inputs.notes_ring;
    let whole = ProvenOperation::all_reduce("ring", gpus, 0)?;
    let (reducing, gathering) = exchanges(&whole);
    let n = f64::from(gpus);
    let cost = whole.cost();
    let rounds = |value: u32| Quantity::of(f64::from(value), "exchanges");
    let said = (0..gpus).map(|gpu| format!("{gpu} sends {gpu}")).collect::<Vec<_>>().join(", ");
    let received =
        (0..gpus).map(|gpu| format!("{gpu} gets {}", (gpu + gpus - 1) % gpus)).collect::<Vec<_>>().join(", ");
    Ok(vec![
        ArticleClaim::new(
            format!("Ring of {gpus}: in the first exchange each GPU sends the chunk of its number"),
            Quantity::words(said),
            Quantity::words(first(&whole, gpus, |gpu, chunks| Some(format!("{gpu} sends {}", chunks.sent?)))),
            How::Formula,
        ),
        ArticleClaim::new(
            format!("Ring of {gpus}: and receives its left neighbour's"),
            Quantity::words(received),
            Quantity::words(first(&whole, gpus, |gpu, chunks| {
                Some(format!("{gpu} gets {}", chunks.received?))
            })),
            How::Formula,
        ),
        ArticleClaim::new(
            format!("Ring of {gpus}: scatter-reduce takes N-1 exchanges"),
            rounds(gpus - 1),
            rounds(reducing),
            How::Formula,
        ),
        ArticleClaim::new(
            format!("Ring of {gpus}: all-gather takes N-1 exchanges"),
            rounds(gpus - 1),
            rounds(gathering),
            How::Formula,
        ),
        ArticleClaim::new(
            format!("Ring of {gpus}: each GPU sends 2(N-1) K"),
            Quantity::of(2.0 * (n - 1.0), "K"),
            Quantity::of(cost.worker.sent.buffers(cost.chunks, 1), "K"),
            How::Formula,
        )
        .because("The notes' formula lacks /N: each exchange carries a chunk, K/N, so it is 2(N-1)/N K."),
    ])
}

/// How many messages rank 0 sends before it has a chunk of the result, and from then on.
fn exchanges(ring: &ProvenOperation) -> (u32, u32) {
    let program = ring.verified.schedule().program(0);
    let steps = program.steps();
    let finish = steps.iter().position(|step| matches!(step, Step::Fold { finish: true, .. }));
    let (reducing, gathering) = steps.split_at(finish.unwrap_or(steps.len()));
    let sends = |steps: &[Step]| steps.iter().filter(|step| matches!(step, Step::Send { .. })).count() as u32;
    (sends(reducing), sends(gathering))
}

/// The first chunks that a rank sends, and receives.
struct FirstChunks {
    sent: Option<u32>,
    received: Option<u32>,
}

/// Each rank's first chunks, in words.
fn first(ring: &ProvenOperation, gpus: u32, words: impl Fn(u32, FirstChunks) -> Option<String>) -> String {
    let of = |gpu: u32| {
        let program = ring.verified.schedule().program(gpu);
        let sent = program.steps().iter().find_map(|step| match step {
            Step::Send { from: Place::User(chunk), .. } => Some(*chunk),
            _ => None,
        });
        let received = program.steps().iter().find_map(|step| match step {
            Step::Fold { chunk, .. } | Step::Recv { chunk, .. } => Some(*chunk),
            _ => None,
        });
        words(gpu, FirstChunks { sent, received })
    };
    (0..gpus).filter_map(of).collect::<Vec<_>>().join(", ")
}
