"""Imports what ranks need once, and forks each rank from here, on its host: a job then starts in a moment.

Usage: forker.py MODULE... It imports the modules and reads requests from its standard input, a line of JSON each: the
rank's number, the job's name in `jobs`, its arguments, its variables, and a process whose network it gets. What ranks
say goes to standard output, a line each. All ranks end with this process, and it ends with its standard input.
"""

import atexit
import ctypes
import importlib
import json
import os
import selectors
import signal
import sys
import time
import traceback
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
NEW_NETWORK, END_WITH_PARENT = 0x40000000, 1
OUTPUT, FAILED = 1, 70
"""Where ranks say things, and the exit status of a rank whose job has raised what it does not expect."""


def say(number: int, event: str, **values: object) -> None:
    """One line, written at once: lines of ranks never mix."""
    line = json.dumps({"number": number, "event": event, "time": time.monotonic(), **values})
    os.write(OUTPUT, line.encode() + b"\n")


def enter_network_of(process: int) -> None:
    """From now on this process is on the host of that one."""
    with open(f"/proc/{process}/ns/net") as network:
        if LIBC.setns(network.fileno(), NEW_NETWORK) != 0:
            raise OSError(ctypes.get_errno(), f"the network of process {process} cannot be entered")


def live(request: dict[str, Any]) -> None:
    """The whole life of a rank."""
    number, status = request["number"], FAILED
    try:
        LIBC.prctl(END_WITH_PARENT, signal.SIGKILL)
        os.setpgid(0, 0)
        if request["network"] is not None:
            enter_network_of(request["network"])
        os.environ.update(request["environment"])
        jobs = importlib.import_module("jobs")
        status = jobs.JOBS[request["job"]](lambda event, **values: say(number, event, **values), **request["arguments"])
    except BaseException:
        traceback.print_exc()
        say(number, "failed", text=traceback.format_exc()[-1500:])
    # It leaves as a program does, and says goodbye. Not all of torch's own threads would end by themselves.
    atexit._run_exitfuncs()
    sys.stderr.flush()
    os._exit(status or 0)


def fork(request: dict[str, Any], ranks: dict[int, int], selector: selectors.BaseSelector) -> None:
    """Starts a rank and watches for its end."""
    process = os.fork()
    if process == 0:
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)
        live(request)
    handle = os.pidfd_open(process)
    ranks[handle] = request["number"]
    selector.register(handle, selectors.EVENT_READ)
    say(request["number"], "started", process=process)


def reap(handle: int, ranks: dict[int, int], selector: selectors.BaseSelector) -> None:
    """A rank has ended."""
    result = os.waitid(os.P_PIDFD, handle, os.WEXITED)
    assert result is not None
    status = result.si_status if result.si_code == os.CLD_EXITED else -result.si_status
    selector.unregister(handle)
    os.close(handle)
    say(ranks.pop(handle), "ended", status=status)


def main() -> None:
    for module in [*sys.argv[1:], "jobs"]:
        importlib.import_module(module)
    ranks: dict[int, int] = {}
    held = b""
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd != 0:
                    reap(key.fd, ranks, selector)
                    continue
                data = os.read(0, 1 << 16)
                if not data:
                    return
                *lines, held = (held + data).split(b"\n")
                for line in lines:
                    fork(json.loads(line), ranks, selector)


if __name__ == "__main__":
    main()
