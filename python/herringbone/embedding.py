"""An embedding of torch whose rows are on a parameter server: a batch pulls the rows that it needs, and pushes their gradients.

::

    from herringbone.embedding import TableEmbedding

    with herringbone.ParameterServer() as servers:
        rows = {"rows": 100_000_000, "width": 64, "sparse": True, "initializer": "normal", "seed": 1}
        words = TableEmbedding(servers.table("words", optimizer="adagrad", consistency=4, **rows))
        for batch, targets in data:
            optimizer.zero_grad()
            loss(model(words(batch)), targets).backward()
            optimizer.step()                                # parameters that are not on servers
            words.push()                                    # gradients of this step

This module imports torch.
"""

from __future__ import annotations

from typing import Any

from .needs import needs

needs("herringbone.embedding", "torch")

import torch

from .arguments import whole
from .errors import ArgumentError
from .listing import listing
from .tables import Table

__all__ = ["TableEmbedding"]

__dir__ = listing(__name__)


class TableEmbedding(torch.nn.Module):
    """Like ``torch.nn.Embedding``, with its weight in a :class:`herringbone.Table`; its only option is ``padding_idx``::

        embedding = TableEmbedding(servers.table("words", rows=1_000_000, width=64, optimizer="adagrad"))
        model(embedding(words)).sum().backward()
        embedding.push()

    Its rows are no parameters of the module: the table's optimizer changes them on the servers. So a worker needs memory only
    for a batch's rows, and an embedding can be larger than any machine. The tables follow Li et al., "Scaling Distributed
    Machine Learning with the Parameter Server" (OSDI 2014).
    """

    def __init__(self, table: Table, *, padding_idx: int | None = None) -> None:
        """For a table whose optimizer takes gradients, such as ``"adagrad"``.

        ``padding_idx`` is a key without a row: its result is zeros, and it gets no gradients. It is neither pulled nor pushed.
        Negative keys start from the table's end.

        Raises :class:`TypeError` if ``table`` is no table; :class:`ArgumentError` if the table does not have ``padding_idx``,
        or its optimizer is ``"add"`` or ``"assign"``, which take values instead of gradients.
        """
        super().__init__()
        if not isinstance(table, Table):
            raise TypeError(f"TableEmbedding: table is a {type(table).__name__}; pass what ParameterServer.table() returns")
        if table.optimizer.lower() in ("add", "assign"):
            raise ArgumentError(
                f"TableEmbedding: the optimizer of the table {table.name!r} is {table.optimizer!r}, which takes values, not gradients; "
                f'make the table with optimizer="sgd", "adagrad" or another one that takes gradients'
            )
        self.table = table
        self.num_embeddings = table.rows
        self.embedding_dim = table.width
        self.padding_idx = None if padding_idx is None else _place(padding_idx, table.rows)
        self._pulled: list[tuple[torch.Tensor, torch.Tensor]] = []

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        """The rows of ``indices`` (whole numbers of any shape), with ``width`` as the last dimension; each row is pulled once.

        Raises :class:`TableError` for a key that the table does not have.
        """
        keys, places = torch.unique(indices, return_inverse=True)
        rows = self._rows(keys)
        if torch.is_grad_enabled() and self.training:
            rows.requires_grad_()
            self._pulled.append((keys, rows))
        return torch.nn.functional.embedding(places, rows)

    def _rows(self, keys: torch.Tensor) -> torch.Tensor:
        """Rows of the table, and zeros for ``padding_idx``."""
        if self.padding_idx is None:
            pulled: torch.Tensor = self.table.pull(keys)
            return pulled
        has_row = keys != self.padding_idx
        pulled = self.table.pull(keys[has_row])
        rows = pulled.new_zeros(len(keys), self.embedding_dim)
        rows[has_row] = pulled
        return rows

    def push(self) -> None:
        """Push the gradients of all forward passes since the last push; this ends the worker's step.

        Each worker calls it once in each step, after ``backward()``, even if it had no batch. Gradients are pushed as they are:
        for the mean over ``n`` workers give the table ``rescale_grad=1/n``.
        """
        pulled, self._pulled = self._pulled, []
        pushed = [(keys, rows.grad) for keys, rows in pulled if rows.grad is not None]
        if not pushed:
            self.table.end_step()
            return
        keys = torch.cat([keys for keys, _ in pushed])
        gradients = torch.cat([gradient for _, gradient in pushed])
        if self.padding_idx is not None:
            counts = keys != self.padding_idx
            keys, gradients = keys[counts], gradients[counts]
        self.table.push(keys, gradients)

    def extra_repr(self) -> str:
        """The table's name, rows and width."""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.table.name!r}, {self.num_embeddings}, {self.embedding_dim}{padding}"


def _place(padding_idx: Any, rows: int) -> int:
    """A key; negative keys start from the end."""
    key = whole("TableEmbedding", "padding_idx", padding_idx, "a key of the table")
    if not -rows <= key < rows:
        raise ArgumentError(
            f"TableEmbedding: padding_idx is {key}; the table has {rows} rows, so it is from {-rows} to {rows - 1}"
        )
    return key % rows
