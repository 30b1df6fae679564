"""Operations with names, which ranks submit in any order, in real processes."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from conftest import Group, free_port

pytest.importorskip("numpy")


def run(group: Group, size: int, way: str, *arguments: str, seconds: float = 120) -> list[dict[str, Any]]:
    """What each of ``size`` ranks says at its end."""
    group.start_ranks("named.py", size, way, *arguments, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    said = []
    for status, output in group.finish(seconds):
        assert status == 0, output
        said.append(json.loads(output.strip().splitlines()[-1]))
    return said


def test_names_come_in_any_order_and_the_cache_saves_rank_0_all(group: Group) -> None:
    for rank in run(group, 3, "any_order"):
        first, last = rank["first"], rank["last"]
        assert last["responses"] == 30 * 40 and last["uncached_requests"] == 40
        assert first["bytes_to_coordinator"] == last["bytes_to_coordinator"] > 0
        assert last["fused_tensors"] > 1000


def test_tensors_that_run_as_one_have_the_bits_that_they_have_alone(group: Group) -> None:
    assert [rank["checked"] for rank in run(group, 3, "fused")] == [50] * 3


def test_adasum_is_what_numpy_makes_of_it(group: Group) -> None:
    run(group, 4, "adasum")


def test_rows_that_differ_in_number_arrive_as_they_are(group: Group) -> None:
    run(group, 3, "moves")


def test_ranks_that_do_not_agree_are_told_horovods_words_and_go_on(group: Group) -> None:
    starts = [
        "NamedError: Mismatched data types: One rank had type float32, but another rank had type float64.",
        "NamedError: Mismatched ALLREDUCE tensor shapes: One rank sent a tensor of shape [2], but another rank sent a tensor of",
        "NamedError: Mismatched prescale and/or postscale factors: One rank sent factors (1, 1), but another rank sent factors (1, 2).",
        "NamedError: Mismatched reduction operation: One rank sent reduction op SUM, but another rank sent reduction op MIN.",
        "NamedError: Mismatched BROADCAST root ranks: One rank specified root rank 0, but another rank specified root rank 1.",
    ]
    for rank in run(group, 2, "mismatches"):
        assert all(said.startswith(start) for said, start in zip(rank["said"], starts, strict=True)), rank["said"]
        assert rank["twice"].startswith("NamedError: Requested to allreduce, allgather, or broadcast a tensor with the same name")
        assert all(said.startswith("NamedError: Horovod has been shut down.") for said in rank["after"]), rank["after"]


def test_a_rank_without_data_contributes_zeros(group: Group) -> None:
    assert [rank["last"] for rank in run(group, 3, "joins")] == [2, 2, 2]


def test_ranks_that_wait_take_no_time_of_a_core(group: Group) -> None:
    for rank in run(group, 3, "idles"):
        assert rank["share"] < 0.01 and rank["agreements"] < 30, rank


def test_all_are_told_that_a_rank_is_lost(group: Group) -> None:
    *reported, _ = run(group, 3, "lost")
    for rank in reported:
        assert "PeerLostError" in rank["waited"] and "PeerLostError" in rank["late"], rank


def test_stalled_tensors_are_listed_with_the_ranks_that_are_missing(group: Group) -> None:
    group.start_ranks("named.py", 3, "stalls", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    outcomes = group.finish(60)
    for status, output in outcomes:
        assert status == 0 and "NamedError: Horovod has been shut down." in output, output
    warned = outcomes[0][1]
    assert "waiting for remainder of ranks for more than 1 seconds" in warned, warned
    assert "Missing ranks:\n0: [other]\n" in warned and "\n1: [known]\n2" in warned, warned
    assert "0!: [other]\n" in warned and "is stalled for longer than 2 seconds. Will shutdown." in warned, warned


def test_a_timeline_shows_the_phases_of_each_tensor(group: Group, tmp_path: Path) -> None:
    events = run(group, 2, "traces", str(tmp_path / "trace.json"))[0]["events"]
    processes = {
        event["args"]["name"]: event["pid"] for event in events if event["ph"] == "M" and event["name"] == "process_name"
    }
    assert set(processes) == {"a", "b", "rows.0", "rows.1"}
    assert any(event["ph"] == "i" and event["name"] == "CYCLE_START" for event in events)
    for name in ("a", "b"):
        own = [event for event in events if event["pid"] == processes[name] and event["ph"] != "M"]
        begun = [event["name"] for event in own if event["ph"] == "B"]
        once = [
            "NEGOTIATE_ALLREDUCE",
            "ALLREDUCE",
            "QUEUE",
            "MEMCPY_IN_FUSION_BUFFER",
            "HERRINGBONE_ALLREDUCE",
            "MEMCPY_OUT_FUSION_BUFFER",
        ]
        assert begun == once * 2
        assert len([event for event in own if event["ph"] == "E"]) == len(begun)
        ticks = [event["name"] for event in own if event["ph"] == "X"]
        assert sorted(ticks) == ["0", "0", "1", "1"] and all(event["dur"] == 0 for event in own if event["ph"] == "X")
        ends = [event["args"] for event in own if event["ph"] == "E" and "args" in event]
        assert ends == [{"dtype": "f64", "shape": "[4]"}] * 2


def test_a_killed_job_leaves_a_timeline_that_viewers_open(group: Group, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    group.start_ranks("named.py", 2, "killed_while_it_traces", str(trace), **place)
    assert all(status == -signal.SIGKILL for status, _ in group.finish(60))
    text = trace.read_text()
    # The format allows that only the bracket is missing.
    events = json.loads(text + "]")
    assert not text.rstrip().endswith("]") and {event["ph"] for event in events} >= {"M", "B", "E", "X"}
    processes = {event["args"]["name"]: event["pid"] for event in events if event.get("name") == "process_name"}
    phases = {name: [event["ph"] for event in events if event["pid"] == pid] for name, pid in processes.items()}
    assert phases["whole"].count("B") == phases["whole"].count("E") > 0
    assert phases["half"].count("B") == 1 and phases["half"].count("E") == 0


def test_the_autotuner_writes_horovods_columns(group: Group, tmp_path: Path) -> None:
    header, *lines = run(group, 2, "tunes", str(tmp_path / "log.csv"))[0]["log"]
    assert header == (
        "hierarchical_allreduce,hierarchical_allgather,torus_allreduce,cache_enabled,cycle_time_ms,tensor_fusion_threshold,score"
    )
    tried = [tuple(line.split(",")[4:6]) for line in lines]
    assert len(set(tried[:-1])) == len(tried) - 1 == 21
    best = max(lines[:-1], key=lambda line: float(line.split(",")[-1]))
    assert lines[-1] == best


@pytest.mark.parametrize(("way", "said"), [("fork", "0"), ("exit", "")])
def test_processes_that_fork_or_just_end_do_not_hang(group: Group, way: str, said: str) -> None:
    assert [rank["said"] for rank in run(group, 2, "ways_out", way, seconds=30)] == [said] * 2
