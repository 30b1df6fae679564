"""LocalSGD and PostLocalSGD: when ranks average, and that the results are those of synchronous training and of torch."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest
from herringbone.optim.rounds import Due, Rounds, WarmUp, cut


def walk(rounds: Rounds, number: int) -> list[str]:
    """What happens in this many rounds, a word for each step."""
    said = []
    for round in range(number):
        for step in range(1, rounds.steps + 1):
            due = rounds.due(step)
            said.append(f"{due.value} {rounds.fragment(round)}" if due is not Due.NOTHING else "-")
    return said


def test_fragments_take_turns_and_start_early_by_the_delay() -> None:
    assert walk(Rounds.checked("t", 3), 2) == ["-", "-", "apply 0"] * 2
    assert walk(Rounds.checked("t", 6, 2), 2) == ["-", "-", "apply 0", "-", "-", "apply 1"]
    assert walk(Rounds.checked("t", 6, 2, 1), 2) == ["-", "issue 0", "apply 0", "-", "issue 1", "apply 1"]
    assert walk(Rounds.checked("t", 1), 2) == ["apply 0"] * 2


@pytest.mark.parametrize("numbers", [(1, 1, 0), (8, 4, 1), (12, 3, 3), (12, 3, 0)])
def test_each_fragment_is_exchanged_once_in_the_steps_of_a_cycle(numbers: tuple[int, int, int]) -> None:
    rounds = Rounds.checked("t", *numbers)
    said = Counter(walk(rounds, rounds.fragments))
    assert sum(said.values()) == rounds.sync_every
    assert [said[f"apply {fragment}"] for fragment in range(rounds.fragments)] == [1] * rounds.fragments
    assert [said[f"issue {fragment}"] for fragment in range(rounds.fragments)] == [int(numbers[2] > 0)] * rounds.fragments


@pytest.mark.parametrize(
    "numbers, wrong",
    [
        ((0,), "sync_every is 0; pass 1 step or more"),
        ((8, 0), "fragments is 0"),
        ((8, 3), "sync_every is 8, which 3 fragments do not divide; pass a multiple, such as 9"),
        ((8, 2, 4), "fragment_sync_delay is 4, but a round has 4 inner steps; pass a number from 0 to 3"),
        ((8, 2, -1), "fragment_sync_delay is -1"),
    ],
)
def test_numbers_that_do_not_fit_are_named(numbers: tuple[int, ...], wrong: str) -> None:
    with pytest.raises(ValueError, match=f"DiLoCo: {wrong}"):
        Rounds.checked("DiLoCo", *numbers)


def test_the_first_average_follows_the_first_step_after_the_warm_up() -> None:
    rule = WarmUp.checked("t", 3, 2)
    assert [rule.sums_gradients(step) for step in range(4)] == [True, True, False, False]
    assert [step for step in range(12) if rule.averages(step)] == [2, 5, 8, 11]
    with pytest.raises(ValueError, match="PostLocalSGD: warmup_steps is -1; pass 0 steps or more"):
        WarmUp.checked("PostLocalSGD", 3, -1)


def test_fragments_are_consecutive_parameters_of_about_equal_size() -> None:
    assert cut([4, 4, 4, 4], 2) == [range(2), range(2, 4)]
    assert cut([100, 1, 1, 1], 2) == [range(1), range(1, 4)]
    assert cut([1, 1, 1, 100], 3) == [range(2), range(2, 3), range(3, 4)]
    assert cut([5, 5], 2) == [range(1), range(1, 2)]
    for fragments in range(1, 8):
        parts = cut([3, 1, 4, 1, 5, 9, 2], fragments)
        assert [at for part in parts for at in part] == list(range(7)) and all(parts)
    with pytest.raises(ValueError, match="2 parameters cannot be cut into 3 fragments; pass 1 to 2"):
        cut([5, 5], 3)


def test_the_cores_do_without_torch() -> None:
    """They run where torch cannot be imported."""
    program = "import sys; sys.modules['torch'] = None\nfrom herringbone.optim import exchange, members, outer, rounds"
    subprocess.run([sys.executable, "-c", program], check=True)


try:
    import torch  # noqa: F401
    from conftest import Run, cases_of, forked
except ImportError:
    cases: list[str] = []
else:
    cases = cases_of("averaging.py")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return forked("averaging.py", 2, tmp_path_factory.mktemp("averaging"))


@pytest.mark.parametrize("case", cases)
def test_trainings(trained: Run, case: str) -> None:
    trained.check(case)
