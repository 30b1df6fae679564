"""Features: every call of torch.distributed that moves or folds tensors and objects."""

import torch
import torch.distributed as dist
from checks import SIZE, everyones, feature, mine, needed, rank, same, total

Op = dist.ReduceOp
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)


def reduced(op: object, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    tensor = mine(dtype=dtype)
    dist.all_reduce(tensor, op)
    return tensor


@feature("all_reduce: SUM, AVG, PRODUCT, MIN, MAX")
def all_reduce() -> None:
    for dtype in (*FLOATS, *INTEGERS):
        inputs = torch.stack(everyones(dtype=dtype))
        same(reduced(Op.SUM, dtype), total(dtype=dtype))
        same(reduced(Op.MIN, dtype), inputs.amin(0))
        same(reduced(Op.MAX, dtype), inputs.amax(0))
        same(reduced(Op.PRODUCT, dtype), inputs[0] * inputs[1])
    for dtype in FLOATS:
        same(reduced(Op.AVG, dtype), total(dtype=dtype) / SIZE)


@feature("all_reduce: BAND, BOR, BXOR")
def bits() -> None:
    for dtype in INTEGERS:
        first, second = everyones(dtype=dtype)
        same(reduced(Op.BAND, dtype), first & second)
        same(reduced(Op.BOR, dtype), first | second)
        same(reduced(Op.BXOR, dtype), first ^ second)


@feature("all_reduce: PREMUL_SUM")
def premul_sum() -> None:
    same(reduced(needed(dist, "_make_nccl_premul_sum")(0.5)), total() * 0.5)


@feature("all_reduce: bool")
def booleans() -> None:
    inputs = [torch.tensor([True, False, owner == 0]) for owner in range(SIZE)]
    for op, join in ((Op.SUM, torch.logical_or), (Op.PRODUCT, torch.logical_and), (Op.BXOR, torch.logical_xor)):
        tensor = inputs[rank()].clone()
        dist.all_reduce(tensor, op)
        same(tensor, join(*inputs))


@feature("all_reduce: complex")
def complex_numbers() -> None:
    for dtype in (torch.complex64, torch.complex128):
        inputs = [torch.complex(*2 * [part.to(torch.float64)]).to(dtype) for part in everyones()]
        tensor = inputs[rank()].clone()
        dist.all_reduce(tensor)
        same(tensor, inputs[0] + inputs[1])


@feature("all_reduce: sparse")
def sparse() -> None:
    parts = [torch.sparse_coo_tensor([[owner, 2]], torch.tensor([1.0, owner + 1.0]), (4,)) for owner in range(SIZE)]
    tensor = parts[rank()].clone()
    dist.all_reduce(tensor)
    same(tensor.to_dense(), parts[0].to_dense() + parts[1].to_dense())


@feature("all_reduce: async, futures")
def futures() -> None:
    tensors = [mine(1000) for _ in range(20)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    doubled = works[0].get_future().then(lambda done: done.value()[0] * 2)
    for work, tensor in zip(works, tensors):
        work.wait()
        assert work.is_completed()
        same(tensor, total(1000))
    same(doubled.wait(), total(1000) * 2)


@feature("all_reduce_coalesced, all_gather_coalesced")
def coalesced() -> None:
    tensors = [mine(3), mine(5)]
    dist.all_reduce_coalesced(tensors)
    same(tensors[0], total(3))
    same(tensors[1], total(5))
    outputs = [[torch.zeros(3), torch.zeros(5)] for _ in range(SIZE)]
    dist.all_gather_coalesced(outputs, [mine(3), mine(5)])
    for owner, (small, large) in enumerate(outputs):
        same(small, mine(3, of=owner))
        same(large, mine(5, of=owner))


@feature("_coalescing_manager")
def coalescing_manager() -> None:
    tensors = [mine(3), mine(5)]
    with needed(dist, "_coalescing_manager")():
        for tensor in tensors:
            dist.all_reduce(tensor)
    same(tensors[0], total(3))
    same(tensors[1], total(5))


@feature("broadcast")
def broadcast() -> None:
    for root in range(SIZE):
        tensor = mine()
        dist.broadcast(tensor, root)
        same(tensor, mine(of=root))


@feature("reduce")
def reduce() -> None:
    for root in range(SIZE):
        tensor = mine()
        dist.reduce(tensor, root)
        same(tensor, total() if rank() == root else mine())


@feature("all_gather, all_gather_into_tensor")
def all_gather() -> None:
    outputs = [torch.zeros(3) for _ in range(SIZE)]
    dist.all_gather(outputs, mine())
    whole = torch.zeros(3 * SIZE)
    dist.all_gather_into_tensor(whole, mine())
    for output, expected in zip(outputs, everyones()):
        same(output, expected)
    same(whole, torch.cat(everyones()))


@feature("all_gather: parts that differ in length")
def uneven_all_gather() -> None:
    outputs = [torch.zeros(owner + 1) for owner in range(SIZE)]
    dist.all_gather(outputs, mine(rank() + 1))
    for owner, output in enumerate(outputs):
        same(output, mine(owner + 1, of=owner))


@feature("reduce_scatter, reduce_scatter_tensor")
def reduce_scatter() -> None:
    whole, output = mine(3 * SIZE), torch.zeros(3)
    dist.reduce_scatter(output, list(whole.chunk(SIZE)))
    same(output, total(3 * SIZE).chunk(SIZE)[rank()])
    output = torch.zeros(3)
    dist.reduce_scatter_tensor(output, whole)
    same(output, total(3 * SIZE).chunk(SIZE)[rank()])


@feature("gather")
def gather() -> None:
    for root in range(SIZE):
        outputs = [torch.zeros(3) for _ in range(SIZE)] if rank() == root else None
        dist.gather(mine(), outputs, root)
        for output, expected in zip(outputs or [], everyones()):
            same(output, expected)


@feature("scatter")
def scatter() -> None:
    for root in range(SIZE):
        output = torch.zeros(3)
        dist.scatter(output, everyones() if rank() == root else None, root)
        same(output, mine())


@feature("all_to_all")
def all_to_all() -> None:
    outputs = [torch.zeros(3) for _ in range(SIZE)]
    dist.all_to_all(outputs, [mine() * (to + 1) for to in range(SIZE)])
    for owner, output in enumerate(outputs):
        same(output, mine(of=owner) * (rank() + 1))


@feature("all_to_all_single: even and uneven")
def all_to_all_single() -> None:
    output = torch.zeros(2)
    dist.all_to_all_single(output, mine(2))
    same(output, torch.stack([part[rank()] for part in everyones(2)]))
    sends = [1, 3] if rank() == 0 else [2, 4]
    receives = [1, 2] if rank() == 0 else [3, 4]
    output = torch.zeros(sum(receives))
    dist.all_to_all_single(output, mine(sum(sends)), receives, sends)
    first, second = mine(4, of=0), mine(6, of=1)
    same(output, torch.cat([first[:1], second[:2]] if rank() == 0 else [first[1:], second[2:]]))


@feature("barrier")
def barrier() -> None:
    dist.barrier()
    assert dist.barrier(async_op=True).wait()


@feature("monitored_barrier")
def monitored_barrier() -> None:
    dist.monitored_barrier()


@feature("send, recv, with tags")
def send_and_recv() -> None:
    if rank() == 0:
        dist.send(mine(), 1)
        dist.send(mine() * 2, 1, tag=7)
    else:
        tensor = torch.zeros(3)
        assert dist.recv(tensor, 0) == 0
        same(tensor, mine(of=0))
        dist.recv(tensor, 0, tag=7)
        same(tensor, mine(of=0) * 2)


@feature("isend, irecv, batch_isend_irecv")
def batches() -> None:
    peer, tensor = 1 - rank(), torch.zeros(3)
    works = [dist.irecv(tensor, peer), dist.isend(mine(), peer)]
    for work in works:
        work.wait()
    same(tensor, mine(of=peer))
    tensor.zero_()
    operations = [dist.P2POp(dist.isend, mine() * 3, peer), dist.P2POp(dist.irecv, tensor, peer)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    same(tensor, mine(of=peer) * 3)


@feature("recv from any source")
def any_source() -> None:
    if rank() == 0:
        tensor = torch.zeros(3)
        assert dist.recv(tensor) == 1
        same(tensor, mine(of=1))
    else:
        dist.send(mine(), 0)


@feature("objects: broadcast, all_gather, gather, scatter")
def objects() -> None:
    reported = [{"rank": rank()}, "text"]
    dist.broadcast_object_list(reported, 1)
    assert reported[0] == {"rank": 1}
    found = [None] * SIZE
    dist.all_gather_object(found, ("part", rank()))
    assert found == [("part", owner) for owner in range(SIZE)]
    gathered = [None] * SIZE if rank() == 0 else None
    dist.gather_object({rank()}, gathered)
    assert gathered == ([{0}, {1}] if rank() == 0 else None)
    mine_alone = [None]
    dist.scatter_object_list(mine_alone, ["zero", "one"] if rank() == 0 else None)
    assert mine_alone == [["zero", "one"][rank()]]


@feature("objects: send, recv")
def sent_objects() -> None:
    if rank() == 0:
        needed(dist, "send_object_list")([{"a": 1}, None], 1)
    else:
        received = [None, "other"]
        needed(dist, "recv_object_list")(received, 0)
        assert received == [{"a": 1}, None]


@feature("functional collectives")
def functional() -> None:
    from torch.distributed import _functional_collectives as functions

    group = dist.group.WORLD
    same(functions.all_reduce(mine(), "sum", group) + 0, total())
    same(functions.all_gather_tensor(mine(), 0, group) + 0, torch.cat(everyones()))
    same(functions.reduce_scatter_tensor(mine(4), "sum", 0, group) + 0, total(4).chunk(SIZE)[rank()])
    same(functions.broadcast(mine(), 1, group) + 0, mine(of=1))
    swapped = functions.all_to_all_single(mine(2), None, None, group)
    same(swapped + 0, torch.stack([part[rank()] for part in everyones(2)]))
    several = functions.all_reduce_coalesced([mine(), mine(4)], "sum", group)
    same(several[1] + 0, total(4))


@feature("functional collectives with gradients")
def differentiable() -> None:
    from torch.distributed.nn import functional as functions

    tensor = mine().requires_grad_()
    added = functions.all_reduce(tensor)
    same(added.detach(), total())
    (added * (rank() + 1)).sum().backward()
    same(tensor.grad, torch.full((3,), 3.0))
