"""One rank of a run of Horovod's tests: it runs the methods of a file in order, and writes what became of each.

Usage: worker.py FILE REPORT SECONDS [METHOD...]. Methods that are named are left out: an earlier run has seen them.

Ranks wait for each other after each method, over a group of their own, and then shut the interface down. So a method that
fails on one rank only cannot harm the next one.
"""

import importlib.util
import json
import os
import pathlib
import signal
import sys
import types
import unittest.mock

import pytest

import herringbone
from herringbone.horovod.common import basics

HELPERS = ("horovod.runner", "horovod.runner.util", "horovod.runner.util.threads")
"""What the tests' own helpers import of Horovod's launcher, and what no test of these files uses."""


class Slow(Exception):
    """A method took too long, as it does if it hangs."""


class Reporter:
    """What pytest tells of each method goes to the report, a line of JSON each."""

    def __init__(self, report, seconds, done):
        self.report, self.seconds, self.done = report.open("a"), seconds, set(done)
        self.outcomes = {}

    def write(self, **said):
        self.report.write(json.dumps(said) + "\n")
        self.report.flush()

    def pytest_collectreport(self, report):
        if report.failed:
            self.write(name="", outcome="failed", reason=last_line(str(report.longrepr)))

    def pytest_collection_modifyitems(self, items):
        items[:] = [item for item in items if item.name not in self.done]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        self.write(name=item.name, outcome="began", reason="")
        signal.signal(signal.SIGALRM, too_slow)
        signal.setitimer(signal.ITIMER_REAL, self.seconds)
        try:
            result = yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        outcome, reason = self.outcomes.pop(item.name, ("passed", ""))
        self.write(name=item.name, outcome=outcome, reason=reason)
        meet(self.seconds)
        return result

    def pytest_runtest_logreport(self, report):
        name = report.location[2].rpartition(".")[2]
        if report.failed:
            text = str((getattr(report.longrepr, "reprcrash", None) and report.longrepr.reprcrash.message) or report.longrepr)
            self.outcomes[name] = ("failed", " ".join(text.split())[:300])
        elif report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            self.outcomes.setdefault(name, ("skipped", str(reason).removeprefix("Skipped: ")))


def give_helpers():
    """Let the helpers of the tests be imported: they import more than these files need."""
    for name in HELPERS:
        sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[HELPERS[-1]])["in_thread"] = None
    sys.modules.setdefault("mock", unittest.mock)
    if importlib.util.find_spec("cloudpickle") is None:
        sys.modules["cloudpickle"] = types.ModuleType("cloudpickle")


def too_slow(number, frame):
    raise Slow("it did not end in time")


def meet(seconds):
    """Wait for the other ranks, and begin anew with them."""
    basics.init()
    try:
        basics.job().barrier(timeout=2 * seconds)
    except herringbone.HerringboneError as error:
        # Without the others no further method can pass.
        print(f"the ranks do not meet after a method: {error}", file=sys.stderr)
        os._exit(70)
    basics.shutdown()


def last_line(text):
    """Where Python's report of an error says which."""
    lines = [line.removeprefix("E").strip() for line in text.splitlines() if line.startswith("E ")] or text.splitlines()
    return lines[-1][:300] if lines else ""


def main():
    file, report, seconds, *done = sys.argv[1:]
    path = pathlib.Path(file).resolve()
    sys.path[:0] = [str(path.parent), str(path.parent.parent / "utils"), str(path.parent.parent)]
    give_helpers()
    rank = os.environ["HOROVOD_RANK"]
    reporter = Reporter(pathlib.Path(report) / f"{rank}.jsonl", float(seconds), done)
    options = ["-q", "-p", "no:cacheprovider", "--noconftest", "-c", os.devnull, "--rootdir", str(path.parent)]
    pytest.main([*options, str(path)], plugins=[reporter])
    reporter.write(name="", outcome="ended", reason="")


if __name__ == "__main__":
    main()
