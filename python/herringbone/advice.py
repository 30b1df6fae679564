"""The advice in errors, for each interface: the engine's own advice names calls that only its direct users have."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ._herringbone import advice
from .errors import HerringboneError

__all__ = ["Interface", "advised", "in_words_of"]

Interface = Literal["torch", "horovod", "kvstore", "rabit", "averaging"]
"""The interface whose user gets an error."""


@dataclass(frozen=True)
class Advice:
    """What a program can do about an error."""

    lost: str
    """Other ranks are gone."""

    closed: str
    """This rank has left the group. The text begins with that."""

    late: str
    """A timeout has passed, and the ranks may only be slow."""


ENGINE = Advice(**advice())
"""The engine's advice to programs that call it directly."""

ADVICE: dict[Interface, Advice] = {
    "torch": Advice(
        lost="restart the job (torchrun --max-restarts), or let the remaining ranks call destroy_process_group() and "
        "init_process_group() again, or dist._reconfigure()",
        closed="this rank has ended the process group; call destroy_process_group() when all its operations have ended, or make "
        "another group",
        late="raise the timeout: the call's, or init_process_group(timeout=...)",
    ),
    "horovod": Advice(
        lost="run the training by hvd.elastic.run, or restart the job",
        closed="this rank has called hvd.shutdown(); call it when all operations have ended, or call hvd.init() again",
        late="raise the timeout (HERRINGBONE_TIMEOUT_S)",
    ),
    "kvstore": Advice(
        lost="restart the job from the values that the program has saved; kv.num_dead_node() returns how many workers are lost",
        closed="the communicator of this store is closed; close it after the store's last call, or create another store",
        late="raise the timeout (HERRINGBONE_TIMEOUT_S)",
    ),
    "rabit": Advice(
        lost="let `herringbone launch --max-attempts` start the job, which starts lost processes again from the last checkpoint",
        closed="this process has called rabit.finalize(); call it last",
        late="raise the timeout (rabit_timeout_sec or HERRINGBONE_TIMEOUT_S)",
    ),
    # For herringbone.optim, whose group is torch's or a communicator.
    "averaging": Advice(
        lost="let the remaining ranks form a group and pass it to regroup(), make it with elastic=True, or restart the job from "
        "state_dict()",
        closed="this rank has closed the group; close it after the last round, or pass another one to regroup()",
        late="raise the timeout of the group, above the time of a round (HERRINGBONE_TIMEOUT_S)",
    ),
}
"""The advice for each interface."""


def advised(text: str, interface: Interface) -> str:
    """The ``text`` of an engine's error, with the advice for a program of ``interface``."""
    for own, others in zip(vars(ENGINE).values(), vars(ADVICE[interface]).values()):
        text = text.replace(own, others)
    return text


@contextlib.contextmanager
def in_words_of(interface: Interface) -> Iterator[None]:
    """A context manager or decorator: the engine's errors inside it carry the advice for programs of ``interface``."""
    try:
        yield
    except HerringboneError as error:
        if error.args:
            error.args = (advised(str(error), interface), *error.args[1:])
        raise
