"""An embedding of torch whose rows are on a parameter server: a batch pulls the rows that it needs, and pushes their gradients.

::

    from herringbone.embedding import TableEmbedding

    with herringbone.ParameterServer() as servers:
        rows = {"rows": 100_000_000, "width": 64, "sparse": True, "initializer": "normal", "seed": 1}
        words = TableEmbedding(servers.table("words", optimizer="adagrad", consistency=4, **rows))
        for batch, targets in data:
            optimizer.zero_grad()
            loss(model(words(batch)), targets).backward()
            optimizer.step()                                # what is not on servers
            words.push()                                    # gradients of this step

This module imports torch.
"""

from __future__ import annotations

import torch

from .errors import ArgumentError
from .tables import Table

__all__ = ["TableEmbedding"]


class TableEmbedding(torch.nn.Module):
    """As ``torch.nn.Embedding``, with its weight in a :class:`herringbone.Table`.

    Its rows are no parameters of the module: the optimizer of the table changes them on the servers. So a worker needs memory for the rows of
    a batch only, and embeddings may be larger than any machine. The tables are those of Li et al., "Scaling Distributed Machine Learning with
    the Parameter Server" (OSDI 2014).
    """

    def __init__(self, table: Table, *, padding_idx: int | None = None) -> None:
        """For a table whose optimizer takes gradients, such as ``"adagrad"``. The row ``padding_idx`` gets no gradients."""
        super().__init__()
        if padding_idx is not None and padding_idx < 0:
            raise ArgumentError(f"padding_idx is {padding_idx}: keys of a table count from 0")
        self.table = table
        self.embedding_dim = table.width
        self.padding_idx = padding_idx
        self._pulled: list[tuple[torch.Tensor, torch.Tensor]] = []

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        """The rows of ``indices``, whole numbers of any shape, with a last dimension of ``width`` elements; each row is pulled once.

        Raises :class:`TableError` for a key that the table does not have.
        """
        keys, places = torch.unique(indices, return_inverse=True)
        rows: torch.Tensor = self.table.pull(keys)
        if torch.is_grad_enabled() and self.training:
            rows.requires_grad_()
            self._pulled.append((keys, rows))
        return torch.nn.functional.embedding(places, rows)

    def push(self) -> None:
        """Push the gradients of all forward passes since the last push; this ends the worker's step.

        Each worker calls it once in each step, after ``backward()``, also if it had no batch. Gradients are pushed as they are: for those of the
        mean over ``n`` workers give the table ``rescale_grad=1/n``.
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
        """The table's name and width."""
        return f"{self.table.name!r}, {self.embedding_dim}"
