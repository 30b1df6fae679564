"""Every type and op that torch folds, against values computed here from all ranks' inputs."""

from __future__ import annotations

from datetime import timedelta

import cases
import torch
import torch.distributed as dist
from values import Op, fold, pieces, rank, same, size

CASES, case = cases.registry()

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.uint8, torch.int32, torch.int64, torch.int16)
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)


@case
def all_reduce_of_every_type_and_op() -> None:
    for dtype in FLOATS + INTEGERS:
        for op in (Op.SUM, Op.AVG, Op.PRODUCT, Op.MIN, Op.MAX):
            inputs = pieces(37, dtype)
            tensor = inputs[rank()].clone()
            dist.all_reduce(tensor, op)
            same(tensor, fold(inputs, op))


@case
def booleans_and_complex_numbers() -> None:
    inputs = [value.bool() for value in pieces(50, torch.int32)]
    for op, expected in ((Op.MAX, torch.stack(inputs).any(0)), (Op.MIN, torch.stack(inputs).all(0))):
        tensor = inputs[rank()].clone()
        dist.all_reduce(tensor, op)
        same(tensor, expected)
    ops = ((Op.SUM, "any"), (Op.PRODUCT, "all"), (Op.BAND, "all"), (Op.BOR, "any"))
    for op, name in ops:
        tensor = inputs[rank()].clone()
        dist.all_reduce(tensor, op)
        same(tensor, getattr(torch.stack(inputs), name)(0))
    tensor = inputs[rank()].clone()
    dist.all_reduce(tensor, Op.BXOR)
    same(tensor, torch.stack(inputs).sum(0) % 2 == 1)
    for real in (torch.float32, torch.float64):
        inputs = [torch.complex(a, a + 1) for a in pieces(9 * size(), real)]
        for op, expected in ((Op.SUM, torch.stack(inputs).sum(0)), (Op.AVG, torch.stack(inputs).mean(0))):
            tensor = inputs[rank()].clone()
            dist.all_reduce(tensor, op)
            torch.testing.assert_close(tensor, expected)
            tensor = inputs[rank()].clone()
            dist.reduce(tensor, 0, op)
            torch.testing.assert_close(tensor, inputs[rank()] if rank() else expected)
            part = torch.empty(9, dtype=expected.dtype)
            dist.reduce_scatter_tensor(part, inputs[rank()].conj().resolve_conj(), op)
            torch.testing.assert_close(part, expected.conj().chunk(size())[rank()])


@case
def bits_are_joined() -> None:
    for dtype in (*INTEGERS, *UNSIGNED):
        inputs = [(value.to(torch.int64) * 1_234_567).to(dtype) for value in pieces(4 * size(), torch.float32)]
        wide = [value.to(torch.int64) for value in inputs]
        for op, join in ((Op.BAND, torch.bitwise_and), (Op.BOR, torch.bitwise_or), (Op.BXOR, torch.bitwise_xor)):
            expected = wide[0]
            for value in wide[1:]:
                expected = join(expected, value)
            expected = expected.to(dtype)
            tensor = inputs[rank()].clone()
            dist.all_reduce(tensor, op)
            same(tensor, expected)
            tensor = inputs[rank()].clone()
            dist.reduce(tensor, size() - 1, op)
            same(tensor, expected if rank() == size() - 1 else inputs[rank()])
            part = torch.empty(4, dtype=dtype)
            dist.reduce_scatter(part, list(inputs[rank()].chunk(size())), op)
            same(part, expected.chunk(size())[rank()])


@case
def unsigned_integers_are_not_taken_for_signed_ones() -> None:
    for dtype in UNSIGNED:
        largest = torch.iinfo(dtype).max
        own = largest if rank() == 0 else rank()
        for op, expected in ((Op.MAX, largest), (Op.MIN, 1 if size() > 1 else largest)):
            tensor = torch.tensor([own], dtype=torch.uint64).to(dtype)
            dist.all_reduce(tensor, op)
            assert tensor.item() == expected, (dtype, op)
        tensor = torch.tensor([own], dtype=torch.uint64).to(dtype)
        dist.all_reduce(tensor)
        assert tensor.item() == (largest + sum(range(size()))) % (largest + 1), dtype


@case
def whole_factors_of_integers_are_exact() -> None:
    tensor = torch.tensor([2**24 + 1, 2**40 + 1])
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(3))
    assert tensor.tolist() == [3 * size() * (2**24 + 1), 3 * size() * (2**40 + 1)]


@case
def sums_of_what_is_multiplied_first() -> None:
    inputs = pieces(5 * size(), torch.float32)
    for factor in (0.5, torch.tensor([rank() + 1.0])):
        op = dist._make_nccl_premul_sum(factor)
        factors = [0.5] * size() if factor == 0.5 else [other + 1.0 for other in range(size())]
        expected = torch.stack([value * times for value, times in zip(inputs, factors)]).sum(0)
        tensor = inputs[rank()].clone()
        dist.all_reduce(tensor, op)
        torch.testing.assert_close(tensor, expected)
        tensor = inputs[rank()].clone()
        dist.reduce(tensor, 0, op)
        torch.testing.assert_close(tensor, inputs[rank()] if rank() else expected)
        part = torch.empty(5)
        dist.reduce_scatter_tensor(part, inputs[rank()], op)
        torch.testing.assert_close(part, expected.chunk(size())[rank()])


if __name__ == "__main__":
    dist.init_process_group("herringbone", timeout=timedelta(seconds=60))
    cases.run(CASES, dist.get_rank())
    dist.destroy_process_group()
