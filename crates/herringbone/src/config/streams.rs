//! How many TCP streams a connection of the plug-in for NCCL has, as a text.

/// The most streams of a connection: as many as NCCL's own sockets have.
const MOST_STREAMS: usize = 64;

/// A number of streams, which `HERRINGBONE_NCCL_STREAMS` holds; none if it is no possible one.
pub(super) fn stream_count(text: &str) -> Option<usize> {
    text.trim().parse().ok().filter(|count| (1..=MOST_STREAMS).contains(count))
}

/// What NCCL's two variables ask for, joined by a colon: their product. Where NCCL has no socket beside the one that it always has (a
/// product of 0), there is one stream.
pub(super) fn nccls_stream_count(text: &str) -> Option<usize> {
    let factors = text.split(':').map(|factor| factor.trim().parse::<usize>().ok());
    let product = factors.reduce(|one, two| one?.checked_mul(two?)).flatten();
    product.filter(|count| *count <= MOST_STREAMS).map(|count| count.max(1))
}
