"""``horovod.run``: runs a function of this program as the ranks of a job."""

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

    The function, its arguments and the results are passed in files that only this user can read: nothing that comes from a
    network is executed. A function of the program itself, even a ``lambda``, needs the package cloudpickle. Without it the
    program is imported again, as :mod:`multiprocessing` does.

    Args:
        np: how many processes, or ``num_proc``; by default 1, or all slots of ``hosts``.
        min_np: dead processes are restarted as long as at least this many remain; ``min_num_proc`` is the same.
        max_np: the most processes, or ``max_num_proc``.
        slots: how many processes to start if no other argument gives the number.
        reset_limit: the most restarts of processes.
        hosts: as in ``horovodrun -H``; only this host is allowed.
        hostfile: a file of hosts.
        output_filename: a folder for the output of each rank.
        network_interfaces: the interfaces of this host to use.
        verbose: 1 or more: print the commands that are run.
        executable: the Python of the processes; by default this process's.
        without_effect: other arguments of Horovod's function, which have no effect here.

    Returns:
        The function's results, by rank.

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
"""Arguments of Horovod's function in several of its versions."""


def _check_names(given: Mapping[str, Any]) -> None:
    """Refuse arguments that Horovod's function never had.

    Raises:
        TypeError: an argument is unknown.
    """
    unknown = sorted(set(given) - set(WITHOUT_EFFECT))
    if unknown:
        raise TypeError(f"horovod.run: it has no argument {unknown[0]!r}")
    idle = sorted(name for name, value in given.items() if value)
    if idle:
        say(f"horovod.run: these arguments have no effect: {', '.join(idle)}")


def _options(numbers: Mapping[str, int | None], texts: Mapping[str, str | None], verbose: int | None) -> Namespace:
    """The arguments as options of the command line.

    Raises:
        ValueError: an argument is not a number of 1 or more.
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
    """The input of :mod:`.called`: how to import the program, and the call."""
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
            f"horovod.run: {name} is from a program without a file, such as a notebook, and cannot be imported elsewhere: install "
            "the package cloudpickle, or import the function from a file"
        )
    # The processes have their own settings, and are not children of multiprocessing.
    kept = {"sys_path", "sys_argv", "dir"} | (set() if by_value else {"init_main_from_name", "init_main_from_path"})
    return pickle.dumps(({name: value for name, value in preparation.items() if name in kept}, call))


def _results(call: bytes, options: Namespace, python: str) -> list[Any]:
    """Make the call on each rank.

    Raises:
        ValueError: it cannot be made with these options.
        RuntimeError: it failed.
    """
    if os.environ.get(CALLED):
        raise RuntimeError(
            "horovod.run: this process is a rank of horovod.run, which has imported the program again; put the call "
            'below `if __name__ == "__main__":`, or install the package cloudpickle, with which nothing is imported again'
        )
    places = slots_of(options)
    for place in places:
        if not is_here(place.host):
            raise ValueError(
                f"horovod.run: {place.host} is another host, but functions are sent only to processes of this one. Put the call "
                f"into a program, and start that with: herringbone horovodrun -H {place.host}:N python program.py"
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
    """The caller's error for a job that failed."""
    if status == 128 + signal.SIGINT and job.failed is None:
        return KeyboardInterrupt()
    # A failure makes the other ranks fail, too, but later.
    texts = sorted(folder.glob(f"*.{FAILURE}"), key=lambda file: file.stat().st_mtime_ns)
    if job.failed is not None and texts:
        return RuntimeError(f"horovod.run: the function failed on rank {texts[0].stem}:\n{texts[0].read_text()}")
    who = "the job was stopped" if job.failed is None else f"the process of rank {job.failed} ended"
    return RuntimeError(f"horovod.run: {who} with exit status {status}; its own message, if any, is above")
