"""Runs features of the matrix with the torch of this Python; `tests/matrix/run.py` starts it.

Usage: worker.py FEATURES, which is JSON: of each its title and the variables that it needs; `--list` prints all. Each is a
job of its own. One line of JSON per feature: its title, the outcome (ok, not in torch, not here, refused, failed, hung), why,
and the seconds.
"""

import json
import pathlib
import sys
import tempfile
import time
from collections.abc import Mapping

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parents[1]))

from lab.events import Ranks

SIZE = 2
"""Ranks of every job."""
SECONDS = 90
"""A feature that takes longer hangs."""
GRACE_SECONDS = 5
"""For the other rank, once one has failed."""


def run(title: str, variables: Mapping[str, str] = {}, module: str = "features") -> tuple[str, str]:
    """One job: what its first rank to fail says, or ok."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, Ranks() as ranks:
        common = {"WORLD_SIZE": str(SIZE), **variables}
        words = [str(HERE / "rank.py"), folder, module, title]
        of_job = [ranks.start(*words, RANK=str(rank), LOCAL_RANK=str(rank), **common) for rank in range(SIZE)]

        def failures():
            said = [event for rank in of_job if (event := rank.first("outcome")) and event["outcome"] != "ok"]
            return sorted(said, key=lambda event: event["time"])

        def is_over():
            return all(rank.first("outcome") or rank.status is not None for rank in of_job)

        if ranks.wait(lambda: is_over() or failures(), SECONDS):
            ranks.wait(is_over, GRACE_SECONDS)
        failed, silent = failures(), [rank for rank in range(SIZE) if not of_job[rank].first("outcome")]
        statuses = [rank.status for rank in of_job]
        print(*(line for rank in of_job for line in rank.lines), sep="\n", end="", file=sys.stderr)
    if failed:
        return failed[0]["outcome"], failed[0]["why"]
    if not silent:
        return "ok", ""
    if statuses[silent[0]] is None:
        return "hung", f"rank {silent[0]} was still running after {SECONDS} s"
    return "failed", f"rank {silent[0]} ended with exit code {statuses[silent[0]]}"


def main() -> None:
    if sys.argv[1:] == ["--list"]:
        import features

        listed = [[feature.title, feature.environment] for feature in features.FEATURES.values()]
        print(json.dumps(listed))
        return
    for title, variables in json.loads(sys.argv[1]):
        began = time.monotonic()
        outcome, why = run(title, variables)
        print(json.dumps([title, outcome, why, round(time.monotonic() - began, 1)]), flush=True)


if __name__ == "__main__":
    main()
