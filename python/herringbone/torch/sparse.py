"""Sums of sparse tensors; ranks can have different indices.

Every rank gathers all ranks' indices and values, padded to the longest, and adds up the values of each index. It receives
N - 1 times the longest rank's part.
"""

from __future__ import annotations

import zlib

import torch

from ..errors import MismatchError, UnsupportedError
from ..kinds import kind_of
from .batch import Batch
from .devices import accelerator_of, located
from .member import Member
from .tensors import Lacking, Reduction, move_type, or_lacking
from .work import torch_error

__all__ = ["all_reduce_sparse"]

LENGTHS = kind_of("all_gather", "i64")


def all_reduce_sparse(member: Member, batch: Batch, tensor: torch.Tensor, reduction: Reduction) -> None:
    """Add calls to ``batch`` that replace ``tensor`` by the merged sum, or average, over all ranks.

    Before this returns, the ranks exchange the lengths of their parts.
    """
    op, factor = reduction
    if op not in ("sum", "average") or factor is not None:
        name = op if factor is None else "PREMUL_SUM"
        raise UnsupportedError(f"herringbone reduces sparse tensors with sum and average, not {name}; use to_dense()")
    if not tensor.is_cpu and accelerator_of(tensor) is None:
        raise UnsupportedError(f"herringbone moves CPU tensors and got a sparse one on {tensor.device}; pass tensor.cpu()")
    part = or_lacking(lambda: tensor.detach().coalesce(), (tensor._nnz(),), tensor.dtype, tensor)
    lengths = _lengths(member, batch, part)
    size, longest = len(lengths), max(lengths)
    indices, values = part.indices(), part.values()
    all_indices = _zeros((size, indices.shape[0], longest), indices)
    all_values = _zeros((size, longest, *values.shape[1:]), values)
    if all_values.numel():
        rank = member.communicator.rank
        if not isinstance(all_indices, Lacking):
            all_indices[rank, :, : lengths[rank]] = indices
        if not isinstance(all_values, Lacking):
            all_values[rank, : lengths[rank]] = values
        for whole in (all_indices, all_values):
            own = whole[rank].contiguous()
            dtype, scale = move_type(own)
            batch.add(kind_of("all_gather", dtype), own.numel() * scale, own, whole)

    def merge() -> None:
        merged = torch.sparse_coo_tensor(
            torch.cat([all_indices[rank, :, :length] for rank, length in enumerate(lengths)], 1),
            torch.cat([all_values[rank, :length] for rank, length in enumerate(lengths)]),
            part.shape,
            check_invariants=False,
        ).coalesce()
        # A detached sparse tensor would not pass its new indices on to the tensor.
        with torch.no_grad():
            tensor.copy_(merged / size if op == "average" else merged)

    batch.finish.append(merge)


def _zeros(shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    return or_lacking(lambda: torch.zeros(shape, dtype=like.dtype, device=located(like).device), shape, like.dtype, like)


def _lengths(member: Member, batch: Batch, part: torch.Tensor) -> list[int]:
    """How many indices each rank has; checks that the tensors agree in everything else."""
    communicator = member.communicator
    alike = zlib.crc32(repr((tuple(part.shape), part.dtype)).encode())
    all = torch.empty((communicator.size, 4), dtype=torch.int64, device="cpu")
    if isinstance(part, Lacking):
        batch.at_once(LENGTHS, 4, part, all)
    own = torch.tensor([part._nnz(), part.sparse_dim(), part.dense_dim(), alike], device="cpu")
    batch.at_once(LENGTHS, 4, own, all)
    unlike = [rank for rank, other in enumerate(all[:, 1:].tolist()) if other != own[1:].tolist()]
    if unlike:
        raise torch_error(
            MismatchError(
                f"all_reduce on rank {communicator.rank}: its sparse tensor has shape {tuple(part.shape)} of "
                f"{part.dtype} with {part.sparse_dim()} sparse dimensions. The tensors of ranks {unlike} differ; "
                "pass tensors of one shape, type and layout"
            )
        )
    return [int(length) for length in all[:, 0]]
