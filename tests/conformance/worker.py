"""Runs methods of torch's own suite for one backend and one world size; `run.py` starts it.

Usage: python worker.py BACKEND SIZE CHECKS SECONDS NAME...  The last line of what it prints per method is JSON.

BACKEND is `gloo` (torch's own), `replaced` (Herringbone under the name "gloo") or `herringbone`. torch and its
suite are imported once; each method runs in a forked child, which forks the ranks, in a session of its own: a
method that hangs is killed with all its processes.
"""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import sys
import tempfile
import time
import unittest

OWN = "herringbone"
NO_GLOO = "ProcessGroupGloo must not be constructed here"
ENDED = {0: "passed", 1: "failed", 2: "skipped"}
SKIPPED, FAILED, PASSED = 2, 1, 0
TAIL = 4000


def suite_for(backend, size, checks):
    """The test case class, after torch was told of the backend."""
    os.environ["HERRINGBONE_REPLACE"] = "gloo" if backend == "replaced" else ""
    os.environ["BACKEND"] = OWN if backend == OWN else "gloo"
    os.environ["WORLD_SIZE"] = str(size)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # The suite asks at import whether to skip; each test sets its own file afterwards.
    os.environ["INIT_METHOD"] = "file:///nothing"
    import torch.distributed as dist
    from torch.testing._internal import common_distributed as common

    if backend != "gloo":
        forbid_gloo(dist)
    if backend == OWN:
        for feature in ("ddp", "subgroup", "plugin"):
            common.DistTestCases.backend_feature[feature].add(OWN)
    from torch.testing._internal.distributed import distributed_test as suite

    profiled = suite.PROFILING_SUPPORTED_BACKENDS, suite.SEND_RECV_PROFILING_SUPPORTED_BACKENDS
    for backends in profiled:
        if checks == "off":
            backends.clear()
        elif OWN not in backends:
            backends.append(OWN)
    return case_of(suite)


def forbid_gloo(dist):
    """Let nothing in this process or its children construct torch's Gloo group."""

    def refuse(*_, **__):
        raise AssertionError(NO_GLOO)

    for module in (dist, dist.distributed_c10d):
        module.ProcessGroupGloo.__init__ = refuse
    with contextlib.suppress(AssertionError):
        dist.ProcessGroupGloo(dist.HashStore(), 0, 1)
        raise SystemExit("ProcessGroupGloo could be constructed")


def case_of(suite):
    """torch's methods, with ranks that are forked."""
    import torch

    bases = suite.TestDistBackend, suite.DistributedTest._DistTestBase

    class Case(*bases):
        def setUp(self):
            super().setUp()
            # The suite's module reads this at import; each test has its own file.
            suite.INIT_METHOD = os.environ["INIT_METHOD"]
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    return Case


def run_one(case, name, log):
    """In a forked child: run the method and end with its outcome."""
    os.setsid()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(dir=log.parent)
    result = unittest.TestResult()
    code = FAILED
    try:
        case(name).run(result)
        for _, text in result.errors + result.failures:
            print(text, file=sys.stderr)
        if result.skipped:
            code = SKIPPED
            print("skipped:", result.skipped[0][1], file=sys.stderr)
        elif result.wasSuccessful():
            code = PASSED
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def outcome_of(case, name, seconds, folder):
    """Run the method in a child, within `seconds`."""
    log = folder / f"{name}.log"
    began, child = time.monotonic(), os.fork()
    if child == 0:
        run_one(case, name, log)
    status = None
    while status is None and time.monotonic() < began + seconds:
        ended, code = os.waitpid(child, os.WNOHANG)
        if ended:
            status = ENDED.get(os.waitstatus_to_exitcode(code), "failed")
        else:
            time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if status is None:
        os.waitpid(child, 0)
    text = log.read_text(errors="replace") if log.exists() else ""
    return {
        "name": name,
        "outcome": status or "timed out",
        "seconds": round(time.monotonic() - began, 2),
        "reason": reason_of(text, status),
        "log": text[-TAIL:] if status in (None, "failed") else "",
    }


def reason_of(text, status):
    """The line that says why a test did not pass."""
    if status == "passed":
        return ""
    if status == "skipped":
        return text.rpartition("skipped:")[2].strip()
    lines = re.findall(r"^((?:\w+\.)*\w*(?:Error|Exception|Exit)\b.*)", text, re.MULTILINE)
    of_ranks = [line for line in lines if not re.match("RuntimeError: Process \\d", line)]
    return of_ranks[0][:300] if of_ranks else text.strip().rpartition("\n")[2][:300]


def main():
    backend, size, checks, seconds, *names = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    case = suite_for(backend, int(size), checks)
    if not names:
        names = unittest.TestLoader().getTestCaseNames(case)
    print(json.dumps({"methods": names}), file=answers, flush=True)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="conformance-"))
    try:
        for name in names:
            print(json.dumps(outcome_of(case, name, float(seconds), folder)), file=answers, flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
