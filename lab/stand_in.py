"""A Python for launchers: what they start with it is forked by the server, or replaced by the real one where that refuses.

It lives as long as the process that it stands for: it passes on the signals that it gets, and ends as that does. The network
is the one that it is started in.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import sys

from .process import Asked, Refused
from .rank import Request

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)


def main(place: str) -> None:
    """Stand for the Python of this command line."""
    words = sys.argv[1:]
    if words[:2] == ["-m", "herringbone"]:
        # The command begins itself again by the words that its process began with, which in a fork are the server's.
        os.execv(sys.executable, [sys.executable, *words])
    # Those that come before there is anybody to have them wait.
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    request = Request.of(words, dict(os.environ), None, os.getpid())
    try:
        asked = Asked(request, [0, 1, 2], place)
    except Refused:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        os.execv(sys.executable, [sys.executable, *words])
    for number in PASSED_ON:
        signal.signal(number, lambda number, _: os.kill(asked.pid, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    select.select([asked.handle], [], [])
    status = asked.status()
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -status not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)
