"""``horovod.run``: a function of this program as the ranks of a job."""

from __future__ import annotations

import importlib.util
import multiprocessing.spawn
import os
import pickle
import shutil
import signal
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from .called import CALL, CALLED, FAILURE, RESULT, dumps, leave
from .flags import parse, variables_of
from .hosts import is_here, slots_of
from .launch import Job
from .processes import StartError, say

__all__ = ["run"]

Result = TypeVar("Result")


def run(
    func: Callable[..., Result],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    np: int | None = None,
    *,
    num_proc: int | None = None,
    min_np: int | None = None,
    min_num_proc: int | None = None,
    max_np: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    output_filename: str | None = None,
    network_interfaces: str | None = None,
    verbose: int | None = None,
    executable: str | None = None,
    **without_effect: Any,
) -> list[Result]:
    """Call ``func(*args, **kwargs)`` in ``np`` new processes of this host, which are the ranks of a job.

    The function and its arguments reach the processes through a file that only this user can read, and so do the results:
    nothing that comes from a network is executed. A function of the program itself, also a ``lambda``, needs the package
    cloudpickle; without it the program is imported again, as by :mod:`multiprocessing`.

    Args:
        np: how many processes, as ``num_proc``; 1 if neither is given, or all slots of ``hosts``.
        min_np: processes that die are started again, as long as so many are left; ``min_num_proc`` is the same.
        max_np: how many there are at most, as ``max_num_proc``.
        slots: how many processes there are if nothing else says it.
        reset_limit: how many processes are started again at most.
        hosts: as of ``horovodrun -H``; only this host can be among them.
        hostfile: a file of hosts.
        output_filename: a folder for the output of each rank.
        network_interfaces: which of this host's are used.
        verbose: 1 or more: say which commands are run.
        executable: the Python of the processes; that of this one if it is left out.
        without_effect: other arguments of Horovod's function, which change nothing here.

    Returns:
        What the function has returned on each rank.

    Raises:
        ValueError: an argument is wrong, or another host is asked for.
        TypeError: the function or its arguments cannot be sent to another process, or an argument is unknown.
        RuntimeError: the function failed; the text names the rank and has its traceback.
    """
    if not callable(func):
        raise TypeError(f"horovod.run: func is a {type(func).__name__}, not a function")
    _check_names(without_effect)
    wanted = {"num_proc": num_proc if num_proc is not None else np, "slots_per_host": slots, "reset_limit": reset_limit}
    wanted |= {"min_np": min_np if min_num_proc is None else min_num_proc}
    wanted |= {"max_np": max_np if max_num_proc is None else max_num_proc}
    texts = {"hosts": hosts, "hostfile": hostfile, "output_filename": output_filename}
    texts |= {"network_interfaces": network_interfaces}
    if all(given is None for given in (np, num_proc, slots, hosts, hostfile)):
        wanted["num_proc"] = 1
    call = _call(func, tuple(args), dict(kwargs or {}))
    return _results(call, _options(wanted, texts, verbose), executable or sys.executable)


WITHOUT_EFFECT = (
    *("cooldown_range", "start_timeout", "ssh_port", "ssh_identity_file", "disable_cache", "use_gloo", "use_mpi"),
    *("mpi_args", "network_interface", "gloo_timeout_seconds", "nics"),
)
"""Arguments of Horovod's function, of several of its versions."""


def _check_names(given: Mapping[str, Any]) -> None:
    """Refuse what was never an argument.

    Raises:
        TypeError: something is.
    """
    unknown = sorted(set(given) - set(WITHOUT_EFFECT))
    if unknown:
        raise TypeError(f"horovod.run: it has no argument {unknown[0]!r}")
    idle = sorted(name for name, value in given.items() if value)
    if idle:
        say(f"horovod.run: these arguments have no effect: {', '.join(idle)}")


def _options(numbers: Mapping[str, int | None], texts: Mapping[str, str | None], verbose: int | None) -> Namespace:
    """The arguments, as those of the command line.

    Raises:
        ValueError: one is no number of 1 or more.
    """
    options = parse(["function"])
    for name, number in numbers.items():
        if number is not None and not (isinstance(number, int) and number >= 1):
            raise ValueError(f"horovod.run: {name} is {number!r}; it is a number of processes, 1 or more")
        setattr(options, name, number)
    for name, text in texts.items():
        setattr(options, name, text)
    options.verbose = bool(verbose)
    return options


def _call(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """What :mod:`.called` reads: how to import the program, and the call."""
    try:
        call, by_value = dumps((func, args, kwargs))
    except Exception as error:
        text = f"horovod.run: the function or its arguments cannot be sent to another process: {error}"
        hint = "" if importlib.util.find_spec("cloudpickle") else "; install the package cloudpickle, which can send more"
        raise TypeError(text + hint) from error
    preparation = multiprocessing.spawn.get_preparation_data("horovod.run")
    has_file = any(name.startswith("init_main") for name in preparation)
    if not by_value and getattr(func, "__module__", None) == "__main__" and not has_file:
        name = getattr(func, "__qualname__", func)
        raise TypeError(
            f"horovod.run: {name} is of a program without a file, such as a notebook, and cannot be imported elsewhere: install "
            "the package cloudpickle, or import the function from a file"
        )
    # The processes have settings of their own, and are no children of multiprocessing.
    kept = {"sys_path", "sys_argv", "dir"} | (set() if by_value else {"init_main_from_name", "init_main_from_path"})
    return pickle.dumps(({name: value for name, value in preparation.items() if name in kept}, call))


def _results(call: bytes, options: Namespace, python: str) -> list[Any]:
    """Make the call on each rank.

    Raises:
        ValueError: it cannot be made as the options say.
        RuntimeError: it failed.
    """
    if os.environ.get(CALLED):
        raise RuntimeError(
            "horovod.run: this process is a rank of horovod.run, whose program is imported again, so the call belongs "
            'below `if __name__ == "__main__":`; with the package cloudpickle nothing is imported again'
        )
    places = slots_of(options)
    for place in places:
        if not is_here(place.host):
            raise ValueError(
                f"horovod.run: {place.host} is another host, and functions are sent to processes of this one only; "
                f"put the call into a program, and start it with: herringbone horovodrun -H {place.host}:N python program.py"
            )
    folder = Path(tempfile.mkdtemp(prefix="horovod.run-"))  # Only this user reads it.
    try:
        leave(folder, CALL, call)
        program = f"import sys, {__package__}.called as called; sys.exit(called.main(sys.argv[1]))"
        options.command = [python, "-c", program, str(folder)]
        job = Job(places, options, variables_of(options) | {CALLED: "1"})
        status = job.run()
        if status:
            raise _failed(job, status, folder)
        return [pickle.loads((folder / f"{number}.{RESULT}").read_bytes()) for number in job.workers]
    except StartError as error:
        raise ValueError(f"horovod.run: {error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _failed(job: Job, status: int, folder: Path) -> BaseException:
    """What the caller is told about a job that failed."""
    if status == 128 + signal.SIGINT and job.failed is None:
        return KeyboardInterrupt()
    # A failure ends the others with failures of their own, which come later.
    texts = sorted(folder.glob(f"*.{FAILURE}"), key=lambda file: file.stat().st_mtime_ns)
    if job.failed is not None and texts:
        return RuntimeError(f"horovod.run: the function failed on rank {texts[0].stem}:\n{texts[0].read_text()}")
    who = "the job was stopped" if job.failed is None else f"the process of rank {job.failed} ended"
    return RuntimeError(f"horovod.run: {who} with exit status {status}; its own message is above, if it left one")
