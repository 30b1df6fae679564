"""``herringbone horovodrun``, or ``python -m herringbone.horovod.horovodrun``: Horovod's launcher."""

from __future__ import annotations

import importlib.util
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from .._herringbone import __version__
from .config import flags_of
from .flags import parse, variables_of, without_effect
from .hosts import slots_of
from .launch import Job
from .processes import StartError, say

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, and return the exit status."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    options = parse(words)
    if options.version:
        print(f"herringbone {__version__}")
        return 0
    if options.check_build:
        print(_build())
        return 0
    problem = _problem(options)
    unknown: list[str] = []
    if problem is None:
        try:
            if options.config_file is not None:
                given, unknown = flags_of(options.config_file)
                # The command line comes later, so it overrides the file.
                options = parse([*given, *words])
                problem = _problem(options)
            slots = slots_of(options, say) if problem is None else []
            if options.output_filename:
                Path(options.output_filename).mkdir(parents=True, exist_ok=True)
        except (ValueError, OSError) as error:
            problem = str(error)
    if problem is not None:
        print(f"herringbone horovodrun: {problem}", file=sys.stderr)
        return 2
    if unknown:
        print(
            f"herringbone horovodrun: {options.config_file}: these keys are unknown and ignored: {', '.join(unknown)}",
            file=sys.stderr,
        )
    idle = without_effect(options)
    if options.max_np and not options.host_discovery_script:
        idle.append("--max-np without --host-discovery-script")
    if idle:
        print(f"herringbone horovodrun: these flags have no effect: {', '.join(idle)}", file=sys.stderr)
    if options.command[0] == "--":
        del options.command[0]
    try:
        return Job(slots, options, variables_of(options)).run()
    except StartError as error:
        print(f"herringbone horovodrun: {error}", file=sys.stderr)
        return error.status
    except ValueError as error:
        print(f"herringbone horovodrun: {error}", file=sys.stderr)
        return 2


def _problem(options: Namespace) -> str | None:
    """A mistake in the combination of flags, in words; empty if there is none."""
    if not [word for word in options.command if word not in ("--", "")]:
        return "which program? for example: herringbone horovodrun -np 4 python train.py"
    least, most, wanted = options.min_np, options.max_np, options.num_proc
    if least and wanted and least > wanted:
        return f"--min-np {least} is more than -np {wanted}"
    if most and (wanted or least or 0) > most:
        return f"--max-np {most} is less than " + (f"-np {wanted}" if wanted else f"--min-np {least}")
    if options.max_attempts > 1 and (least or options.host_discovery_script):
        return "--max-attempts is for jobs that are not elastic; limit the restarts of this job with --reset-limit"
    return None


def _build() -> str:
    """What this installation supports, in the form of Horovod's ``--check-build``."""

    def mark(there: bool) -> str:
        return "[X]" if there else "[ ]"

    lines = [f"Herringbone v{__version__}, in Horovod's place:", "", "Available Frameworks:"]
    torch = importlib.util.find_spec("torch") is not None
    numpy = importlib.util.find_spec("numpy") is not None
    frameworks = {"TensorFlow": False, "PyTorch": torch, "MXNet": False, "numpy": numpy}
    lines += [f"    {mark(there)} {name}" for name, there in frameworks.items()]
    lines += [
        "",
        "Available Controllers:",
        f"    {mark(False)} MPI",
        f"    {mark(False)} Gloo",
        f"    {mark(True)} Herringbone",
    ]
    lines += ["", "Available Tensor Operations:"]
    lines += [f"    {mark(False)} {name}" for name in ("NCCL", "DDL", "CCL", "MPI", "Gloo")] + [f"    {mark(True)} Herringbone"]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
