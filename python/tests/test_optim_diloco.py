"""DiLoCo: its outer step and its exchange in numpy, its results beside averaging and torch, and what becomes of lost ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from herringbone import ArgumentError, PeerLostError
from herringbone.optim import members
from herringbone.optim.exchange import Exchange, Wire, slices
from herringbone.optim.outer import OuterSGD, difference


def test_the_difference_is_the_common_minus_the_own() -> None:
    common, own = [np.array([1.0, 2.0]), np.array([3.0])], [np.array([0.5, 3.0]), np.array([3.0])]
    assert [values.tolist() for values in difference(common, own)] == [[0.5, -1.0], [0.0]]
    assert common[0].tolist() == [1.0, 2.0]


def test_the_momentum_is_saved_by_value_and_checked() -> None:
    values = [np.ones(3)]
    one = OuterSGD(0.5, 0.9)
    one.step(values, [np.ones(3)])
    state, twin = one.state_dict(), [each.copy() for each in values]
    other = OuterSGD(0.5, 0.9)
    other.load_state_dict(state, twin)
    for outer, parameters in ((one, values), (other, twin)):
        outer.step(parameters, [np.full(3, 2.0)])
    assert np.array_equal(values[0], twin[0])
    with pytest.raises(ArgumentError, match="the outer momentum is of"):
        other.load_state_dict(state, [np.ones(4)])
    fresh = OuterSGD(0.5, 0.9)
    fresh.load_state_dict(OuterSGD().state_dict(), values)
    assert fresh.velocity is None


@pytest.mark.parametrize(
    "numbers, wrong", [((0.0, 0.9), "outer_lr is 0"), ((0.7, 1.0), "outer_momentum is 1"), ((0.7, -1), "-1")]
)
def test_numbers_out_of_range_are_named(numbers: tuple[float, float], wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        OuterSGD(*numbers)


def test_arrays_travel_in_slices_of_the_asked_length() -> None:
    assert slices(10, 4, 16) == [slice(0, 4), slice(4, 8), slice(8, 10)]
    assert slices(2, 8, 1) == [slice(0, 1), slice(1, 2)]
    assert slices(0, 4, 16) == []


class Group:
    """A group of one rank that doubles what it averages, or loses a rank within some call, after it has written half."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.calls: list[dict[str, Any]] = []
        self.fails_at = fails_at

    def all_reduce(self, array: Any, op: str, *, out: Any, async_op: bool, **coded: Any) -> Group.Pending:
        assert op == "average" and async_op
        self.calls.append(coded)
        return Group.Pending(array, out, len(self.calls) - 1 == self.fails_at)

    class Pending:
        def __init__(self, array: Any, out: Any, fails: bool) -> None:
            self.array, self.out, self.fails = array, out, fails

        def wait(self) -> None:
            half = len(self.array) // 2 if self.fails else len(self.array)
            self.out[:half] = 2 * self.array[:half]
            if self.fails:
                raise PeerLostError("rank 1 is lost", [1])


def test_an_exchange_is_made_again_from_values_that_a_failure_left_alone() -> None:
    values: list[Any] = [np.arange(10, dtype=np.float32), np.arange(3, dtype=np.float64)]
    before = [each.copy() for each in values]
    exchange = Exchange(values, Wire("t", None, True, 16), "fragment 0")
    exchange.issue(Group(fails_at=1))
    with pytest.raises(PeerLostError):
        exchange.wait()
    assert all(np.array_equal(*pair) for pair in zip(values, before))
    group: Any = Group()
    exchange.issue(group)
    exchange.issue(group)
    assert len(group.calls) == 3 + 2, "what has started over a group starts once"
    results = exchange.wait()
    assert [each.dtype for each in results] == [np.float32, np.float64]
    assert all(np.array_equal(mine, 2 * old) for mine, old in zip(results, before))
    assert all(np.array_equal(*pair) for pair in zip(values, before))


def test_codecs_are_for_arrays_of_float32_and_feed_back_by_slice() -> None:
    values = [np.zeros(8, np.float32), np.zeros(2)]
    group: Any = Group()
    wire = Wire("t", "int8", True, 16)
    Exchange(values, wire, "fragment 1").issue(group)
    assert [call.get("tensor") for call in group.calls] == ["fragment 1 0 0", "fragment 1 0 1", None]
    assert group.calls[0]["compression"] == "int8" and group.calls[0]["residuals"] is wire.residuals
    without: Any = Group()
    Exchange(values, Wire("t", "int8", False, 16), "f").issue(without)
    assert without.calls == [{"compression": "int8"}, {"compression": "int8"}, {}]
    with pytest.raises(ValueError, match="DiLoCo: .*int7"):
        Wire("DiLoCo", "int7", True, 16)


class Job:
    """An elastic job of which a rank is lost in the first step. The others have another state then, if it is given."""

    def __init__(self, state: Any, load: Any, *, given: Any = None, **_: Any) -> None:
        self.load, self.given, self.steps, self.communicator = load, given, 0, Group(fails_at=0)

    @contextmanager
    def step(self) -> Iterator[Any]:
        try:
            yield self.communicator
        except PeerLostError:
            self.communicator = Group()
            if self.given is not None:
                self.load(self.given)
            return
        self.steps += 1


class State:
    """What ranks have alike: a number."""

    rounds = 0

    def save(self) -> dict[str, Any]:
        return {"rounds": self.rounds}

    def load(self, state: dict[str, Any]) -> bool:
        replaces, self.rounds = state["rounds"] != self.rounds, state["rounds"]
        return replaces


@pytest.mark.parametrize("theirs, ends", [(None, True), (0, True), (1, False)])
def test_a_lost_rank_repeats_the_exchange_unless_others_have_its_result(
    monkeypatch: pytest.MonkeyPatch, theirs: int | None, ends: bool
) -> None:
    monkeypatch.setattr(members, "Job", Job)
    given = None if theirs is None else {"rounds": theirs}
    state = State()
    own = members.ElasticMembers(state, None, given=given)
    own.begin()
    values = np.arange(4, dtype=np.float32)
    exchange = Exchange([values], Wire("t", None, True, 64), "f")
    own.issue(exchange)
    averages = own.settle(exchange)
    assert (averages is not None) == ends and own.job.steps == ends and state.rounds == (theirs or 0)
    assert not ends or np.array_equal(averages[0], 2 * values)
    # The next round is one as usual.
    own.begin()
    assert np.array_equal(own.settle(Exchange([values], Wire("t", None, True, 64), "f"))[0], 2 * values)


try:
    import torch  # noqa: F401
    from conftest import Run, cases_of, forked
except ImportError:
    cases: list[str] = []
else:
    cases = cases_of("diloco.py")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return forked("diloco.py", 2, tmp_path_factory.mktemp("diloco"))


@pytest.mark.parametrize("case", cases)
def test_trainings(trained: Run, case: str) -> None:
    trained.check(case)
