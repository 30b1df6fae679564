"""Runs features of the matrix with the torch of this Python; `tests/matrix/run.py` starts it.

Usage: worker.py TITLE... All features need the same variables, which are set already. torch is imported once; each
feature is a job of its own, whose ranks are forked from here. One line of JSON per feature: its title, the outcome
(ok, not in torch, not here, refused, failed, hung), and why.
"""

import json
import multiprocessing
import os
import pathlib
import signal
import sys
import tempfile
import time
import traceback
from datetime import timedelta

import checks
import features  # noqa: F401  # lists them
import torch.distributed as dist
from checks import FEATURES, FOLDER, SIZE, Feature, NotHere, NotInTorch

SECONDS = 90
"""A feature that takes longer hangs."""
GRACE_SECONDS = 5
"""For the other rank, once one has failed."""


def outcome_of(feature: Feature) -> tuple[str, str]:
    """Runs the feature in this rank: the outcome, and why."""
    try:
        if feature.backend is not None:
            where = {"rank": int(os.environ["RANK"]), "world_size": SIZE, "timeout": timedelta(seconds=60)}
            dist.init_process_group(feature.backend, init_method=checks.meeting("world"), **where)
        feature.run()
        if dist.is_initialized():
            dist.barrier()
            dist.destroy_process_group()
    except NotInTorch as error:
        return "not in torch", str(error)
    except NotHere as error:
        return "not here", str(error)
    except NotImplementedError as error:
        return "refused", str(error).splitlines()[0]
    except BaseException as error:
        traceback.print_exc()
        return "failed", f"{type(error).__name__}: {(str(error) or repr(error)).splitlines()[0]}"
    return "ok", ""


def be_rank(rank: int, feature: Feature, folder: str) -> None:
    """The whole life of a rank."""
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(SIZE), FOLDER: folder}
    os.environ.update(place)
    os.setpgid(0, 0)
    outcome = outcome_of(feature)
    file = pathlib.Path(folder, f"outcome{rank}")
    file.with_suffix(".new").write_text(json.dumps([time.monotonic(), *outcome]))
    file.with_suffix(".new").rename(file)
    # Not all of torch's own threads end by themselves.
    sys.stderr.flush()
    os._exit(0)


def end(processes: list[multiprocessing.Process]) -> None:
    """Ends the ranks, with what they have started."""
    for process in processes:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.join()


def run(feature: Feature) -> tuple[str, str]:
    """One job: what its first rank to fail says, or ok."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        forking = multiprocessing.get_context("fork")
        ranks = [forking.Process(target=be_rank, args=(rank, feature, folder)) for rank in range(SIZE)]
        for process in ranks:
            process.start()
        deadline = time.monotonic() + SECONDS
        said: dict[int, list] = {}
        while len(said) < SIZE and time.monotonic() < deadline and any(process.is_alive() for process in ranks):
            time.sleep(0.02)
            said = read(folder)
            if any(outcome != "ok" for _, outcome, _ in said.values()):
                deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        time.sleep(0.05)
        said = read(folder)
        codes = [process.exitcode for process in ranks]
        end(ranks)
    failures = sorted(said_by for said_by in said.values() if said_by[1] != "ok")
    if failures:
        return failures[0][1], failures[0][2]
    silent = [rank for rank in range(SIZE) if rank not in said]
    if not silent:
        return "ok", ""
    if codes[silent[0]] is None:
        return "hung", f"rank {silent[0]} was still running after {SECONDS} s"
    return "failed", f"rank {silent[0]} ended with exit code {codes[silent[0]]}"


def read(folder: str) -> dict[int, list]:
    """What the ranks have written, by rank."""
    said = {}
    for rank in range(SIZE):
        file = pathlib.Path(folder, f"outcome{rank}")
        if file.exists():
            said[rank] = json.loads(file.read_text())
    return said


def main() -> None:
    # The ranks' own output is none of the lines.
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if sys.argv[1:] == ["--list"]:
        listed = [[feature.title, feature.environment] for feature in FEATURES.values()]
        print(json.dumps(listed), file=lines, flush=True)
        return
    for title in sys.argv[1:]:
        began = time.monotonic()
        outcome, why = run(FEATURES[title])
        print(json.dumps([title, outcome, why, round(time.monotonic() - began, 1)]), file=lines, flush=True)


if __name__ == "__main__":
    main()
