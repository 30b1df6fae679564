//! Urgent operations overtake ordinary ones that were issued before them.

use crate::world::{Reducers, Transport, World};
use herringbone::{Collective, Communicator, DType, Pending, Region, Request};

const LARGE: usize = 4 << 20;

fn ones(count: usize) -> Region {
    Region::own(vec![1i32; count]).region().clone()
}

/// A sum of `count` ones in the background; the region has the result.
fn sum(comm: &Communicator, count: usize, priority: i32) -> (Pending, Region) {
    sum_of(comm, ones(count), count, priority)
}

fn sum_of(comm: &Communicator, buffer: Region, count: usize, priority: i32) -> (Pending, Region) {
    let (input, output) = (buffer.clone(), buffer.clone());
    let request = Request::new(Collective::AllReduce, DType::I32, count, input, output);
    let pending = comm.submit(request.priority(priority));
    (pending.unwrap(), buffer)
}

fn is_sum(comm: &Communicator, buffer: &Region) -> bool {
    let bytes = buffer.access().unwrap().span().to_vec();
    bytes.chunks(4).all(|bytes| bytes == (comm.size() as i32).to_ne_bytes())
}

/// More large sums than there is memory for at once, then a small one: with priority it ends before they do. Returns how
/// many of them were over when it was. The memory is there before the first begins, so that all begin at once.
fn overtaken(comm: &Communicator, priority: i32) -> usize {
    let buffers: Vec<Region> = (0..24).map(|_| ones(LARGE)).collect();
    comm.barrier().unwrap();
    let large: Vec<_> = buffers.into_iter().map(|buffer| sum_of(comm, buffer, LARGE, 0)).collect();
    let (small, buffer) = sum(comm, 5000, priority);
    small.wait().unwrap();
    let over = large.iter().filter(|(pending, _)| pending.is_done()).count();
    assert!(is_sum(comm, &buffer));
    for (pending, buffer) in &large {
        pending.wait().unwrap();
        assert!(is_sum(comm, buffer));
    }
    over
}

#[test]
fn an_urgent_operation_overtakes_queued_ones() {
    let over = World::new(2, Transport::Tcp).run(|comm| (overtaken(comm, 0), overtaken(comm, 1)));
    for (ordinary, urgent) in over {
        assert!(
            urgent < ordinary && urgent < 12,
            "{urgent} of 24 were over before an urgent one, {ordinary} before an ordinary one"
        );
    }
}

#[test]
fn reducers_let_urgent_operations_pass() {
    let servers = Reducers::start(2);
    let world = World::new(2, Transport::Tcp).forced("reduction_server").reducers(servers.first(2));
    for (ordinary, urgent) in world.run(|comm| (overtaken(comm, 0), overtaken(comm, 7))) {
        assert!(urgent < ordinary && urgent < 12, "{urgent} of 24 before, {ordinary} without priority");
    }
}

/// Ranks that disagree about a priority are told so.
#[test]
fn a_priority_is_part_of_what_ranks_agree_on() {
    World::new(2, Transport::Shm).run(|comm| {
        let (pending, _) = sum(comm, 1000, comm.rank() as i32);
        let error = pending.wait().unwrap_err().to_string();
        assert!(error.contains("priority"), "{error}");
    });
}
