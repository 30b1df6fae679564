"""Processes that fork, leave twice, go on after the end, or end with work under way: typed errors and clean ends, never a hang."""

from __future__ import annotations

import pytest
from conftest import Group, free_port

WAYS = {
    "fork": {"numpy": "the child ended with 0", "torch": "the child ended with 0"},
    "fork_and_exit": {"numpy": "the child ended with 0", "torch": "the child ended with 0"},
    # torch itself says that there is no group any more.
    "leave_twice": {"numpy": "nothing", "torch": "AssertionError"},
    "use_after": {"numpy": "ClosedError", "torch": "ClosedError"},
    "exit_in_flight": {"numpy": "3 under way", "torch": "3 under way"},
}
BEFORE_THE_END = ("fork", "leave_twice", "use_after")
CASES = [(face, way) for way in WAYS for face in ("numpy", "torch")]


def leave(group: Group, face: str, way: str) -> list[tuple[int, str]]:
    """How two ranks end."""
    pytest.importorskip(face)
    # The end of a program with work under way is the end of a fresh process.
    forked = None if way in BEFORE_THE_END else False
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    group.start_ranks("ways_out.py", 2, face, way, forked=forked, **place)
    return group.finish(60)


@pytest.mark.parametrize(("face", "way"), CASES)
def test_a_way_out_is_clean(group: Group, face: str, way: str) -> None:
    for status, output in leave(group, face, way):
        assert status == 0, output
        assert output.strip().splitlines()[-1] == WAYS[way][face], output


@pytest.mark.parametrize("face", ["numpy", "torch"])
def test_a_rank_that_fails_with_work_under_way_harms_no_other(group: Group, face: str) -> None:
    (status, last_words), (failed, output) = leave(group, face, "raise_in_flight")
    assert status == 0 and last_words.strip().splitlines()[-1] == "PeerLostError", last_words
    assert failed == 1 and "OSError: the last rank has no disk" in output, output


def test_who_leaves_learns_of_the_mismatch_in_the_last_call(group: Group) -> None:
    pytest.importorskip("numpy")
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    group.start_ranks("unmatched.py", 2, f"127.0.0.1:{free_port()}", **place)
    (status, last_words), (other, output) = group.finish(60)
    assert status == other == 0, last_words + output
    assert last_words.startswith("the program ends\nMismatchError: herringbone, on rank 0: close: the ranks disagree"), last_words
