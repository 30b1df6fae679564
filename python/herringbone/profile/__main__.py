"""``python -m herringbone.profile``: runs a training script for some steps, and writes a profile of its model."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

from ..compare.files import write
from ..needs import needs
from .document import Profile
from .options import Options, parsed
from .problems import ProfileError
from .script import run
from .summary import summary
from .writing import as_object, text

__all__ = ["main"]

FAILED, CANNOT_START = 1, 3
"""Exit codes, the same as the command's verbs have."""


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line, and return the exit status."""
    options = parsed(sys.argv[1:] if words is None else words)
    try:
        needs("herringbone.profile", "torch")
    except ModuleNotFoundError as error:
        _say(str(error))
        return CANNOT_START
    if not options.script.is_file():
        _say(f"the script {options.script} does not exist: pass the file of the training")
        return CANNOT_START
    from .assembling import Place, place, profile_of
    from .watch import Watch

    places: list[Place] = []
    watch = Watch(options.warm_up, options.steps, lambda: places.append(place()), options.sums)
    watch.install()
    process = os.getpid()
    try:
        ended = run(options.script, options.arguments)
    finally:
        watch.remove()
    if os.getpid() != process:
        # The script has forked this process, and its parent writes the profile.
        return ended.status
    try:
        if ended.status:
            _say(f"{options.script.name} ended with exit code {ended.status}, so there is no profile")
            return ended.status
        if ended.problem is not None:
            raise ProfileError(ended.problem)
        where = places[0] if places else place()
        return _reported(options, profile_of(watch, options, where), where.rank)
    except ProfileError as problem:
        _say(f"no profile: {problem}")
        return FAILED
    finally:
        _leave()


def _reported(options: Options, profile: Profile, rank: int) -> int:
    """Write and print a rank's profile, if this rank has to; returns the exit status."""
    path = options.writes(rank)
    if path is None:
        return 0
    if why := write(options.folder / path, text(profile)):
        _say(f"{path} cannot be written: {why}")
        return FAILED
    steps = profile.measured.steps if profile.measured else 0
    if steps < options.steps:
        _say(f"the script ended after {steps} of the {options.steps} steps to measure")
    print(json.dumps(as_object(profile)) if options.json else f"{summary(profile)}\nwrote {path}", flush=True)
    return 0


def _leave() -> None:
    """Leave the process group of a script that was stopped before it could do so."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def _say(line: str) -> None:
    print(f"herringbone.profile: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
