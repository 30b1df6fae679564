"""Settings of a communicator that can be given in Python instead of the environment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .arguments import text
from .names import Algorithm, FoldOrder, Transport

__all__ = ["Options"]


@dataclass(frozen=True)
class Options:
    """Settings of a group of workers. A setting that is ``None`` comes from the environment, or has its default::

        options = herringbone.Options(transport="tcp")
        group = herringbone.init(options=options)
        torch.distributed.init_process_group("herringbone", pg_options=options)

    Every rank gives the same values; of ``reducers`` only rank 0's are used.
    """

    reducers: Sequence[str] | None = None
    """Addresses ``host:port`` of running ``herringbone serve`` processes (``HERRINGBONE_REDUCERS``)."""

    algorithm: Algorithm | None = None
    """Name of the algorithm that every all-reduce must use (``HERRINGBONE_ALGORITHM``)."""

    transport: Transport | None = None
    """``"shm"`` or ``"tcp"``: the only transport between processes (``HERRINGBONE_TRANSPORT``)."""

    fold_order: FoldOrder | None = None
    """``"ranks"``, ``"hosts"`` or ``"sites"``: the order in which numbers are added (``HERRINGBONE_FOLD_ORDER``)."""

    token: str | None = None
    """The job's shared secret, any non-empty text (``HERRINGBONE_TOKEN``)."""

    def __post_init__(self) -> None:
        if isinstance(self.reducers, str):
            raise TypeError(f"reducers is a list of addresses; write reducers=[{self.reducers!r}]")
        if self.reducers is not None:
            object.__setattr__(self, "reducers", tuple(text("Options", "one of reducers", each) for each in self.reducers))
        for name in ("algorithm", "transport", "fold_order", "token"):
            if getattr(self, name) is not None:
                text("Options", name, getattr(self, name))

    def __repr__(self) -> str:
        token = "set" if self.token else None
        return (
            f"Options(reducers={self.reducers!r}, algorithm={self.algorithm!r}, "
            f"transport={self.transport!r}, fold_order={self.fold_order!r}, token={token!r})"
        )
