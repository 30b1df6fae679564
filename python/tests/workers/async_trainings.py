"""AsyncSGD on real servers: the workers of a training are threads of this process. Started by test_optim_async.py."""

from __future__ import annotations

import functools
import sys
import threading
from typing import Any
from unittest import mock

import cases
import pytest
import torch

import herringbone
from herringbone.kvstore.meeting import Meeting
from herringbone.optim import AsyncSGD, async_sgd

CASES, case = cases.registry()
MORE: dict[str, cases.Case] = {}
"""Variants of these for which `make test` has no time."""


def connect(rank: int = 0, workers: int = 1) -> herringbone.ParameterServer:
    """Connect to the test's servers, as a worker."""
    return herringbone.ParameterServer(rank=rank, workers=workers, timeout=60)


def variant(function: Any, name: str, *given: Any, is_usual: bool = False) -> None:
    """Add a case by what it is given: `make test` runs the usual ones. Its last argument is a name for its tables."""
    whole = f"{function.__name__}_{name}"
    (CASES if is_usual else MORE)[whole] = functools.partial(function, *given, whole)


def network(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(5, 70), torch.nn.Tanh(), torch.nn.Linear(70, 3))


def backward(model: torch.nn.Module, step: int) -> None:
    torch.manual_seed(step)
    inputs = torch.randn(8, 5)
    model.zero_grad()
    torch.nn.functional.mse_loss(model(inputs), inputs[:, :3].sin()).backward()


def together(calls: list[Any]) -> list[Any]:
    """What calls give that wait for each other."""
    results: list[Any] = [None] * len(calls)

    def run(place: int) -> None:
        results[place] = calls[place]()

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    return all(torch.equal(left, right) for left, right in zip(one.parameters(), other.parameters()))


MOMENTUM = lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01)
NESTEROV = lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True)
ADAGRAD = lambda parameters: torch.optim.Adagrad(parameters, lr=0.1, eps=1e-7)
RMSPROP = lambda parameters: torch.optim.RMSprop(parameters, lr=0.01)
ADAMW = lambda parameters: torch.optim.AdamW(parameters, lr=0.01, eps=1e-12)


def pair(name: str, make: Any, **options: Any) -> Any:
    """Connections, models and optimizers of two workers."""
    connected = [connect(rank, 2) for rank in range(2)]
    models = [network(rank) for rank in range(2)]
    made = [lambda place=place: AsyncSGD(make(models[place]), connected[place], name=name, **options) for place in range(2)]
    return connected, models, together(made)


def one_worker_trains_as_torch_does(make: Any, tolerance: float, name: str) -> None:
    model, reference = network(1), network(1)
    with connect() as connected:
        optimizer = AsyncSGD(make(model.parameters()), connected, staleness="none", name=name)
        plain = make(reference.parameters())
        for step in range(8):
            backward(model, step)
            backward(reference, step)
            if step == 4:  # torch leaves a parameter without a gradient as it is
                for one in (model, reference):
                    one[0].bias.grad = None  # type: ignore[index, union-attr]
            optimizer.step()
            plain.step()
        assert optimizer.state_dict()["steps"] == 9, "and one gave the table its first values"
    for one, other in zip(model.parameters(), reference.parameters()):
        assert torch.allclose(one, other, rtol=tolerance, atol=tolerance)


@case
def a_gradient_that_is_three_updates_old_counts_a_third() -> None:
    connected, models, optimizers = pair("scaled", make=lambda model: torch.optim.SGD(model.parameters(), lr=0.5))
    assert same(*models), "both begin with rank 0's parameters"
    backward(models[0], 100)
    gradients = [parameter.grad.clone() for parameter in models[0].parameters()]
    for step in range(3):
        backward(models[1], step)
        optimizers[1].step()
        assert optimizers[1].last_staleness == 0
    before = [parameter.detach().clone() for parameter in models[1].parameters()]
    optimizers[0].step()
    assert optimizers[0].last_staleness == 3
    for parameter, old, gradient in zip(models[0].parameters(), before, gradients):
        assert torch.equal(parameter, old - torch.tensor(0.5) * (gradient * torch.tensor(1 / 3)))
    backward(models[1], 7)
    optimizers[1].step()
    assert optimizers[1].last_staleness == 1
    for one in connected:
        one.close()


@case
def servers_update_by_the_mean_of_the_first_gradients() -> None:
    """Three gradients make an update, whichever workers push them; staleness counts updates."""
    connected, models, optimizers = pair("gathered", lambda model: torch.optim.SGD(model.parameters(), lr=0.5), first_k=3)
    assert same(*models), "both begin with rank 0's parameters"
    before = [parameter.detach().clone() for parameter in models[0].parameters()]
    sums = [torch.zeros_like(parameter) for parameter in before]
    for step, worker in enumerate([1, 0, 1]):
        assert all(torch.equal(*each) for each in zip(models[worker].parameters(), before)), "nothing has changed yet"
        backward(models[worker], step)
        for total, parameter in zip(sums, models[worker].parameters()):
            total += parameter.grad
        optimizers[worker].step()
        assert optimizers[worker].last_staleness == 0
    for parameter, old, total in zip(models[1].parameters(), before, sums):
        assert torch.allclose(parameter, old - 0.5 * total / 3, rtol=1e-6, atol=1e-7)
    backward(models[0], 9)
    optimizers[0].step()
    assert optimizers[0].last_staleness == 1
    assert same(*models), "the fourth gradient waits for two more"
    for one in connected:
        one.close()


def all_finish_with_the_same_parameters(options: Any, name: str) -> None:
    """Also where one makes fewer steps, and after more steps again; a learning rate that was passed on stays."""
    connected, models, optimizers = pair(name, lambda model: MOMENTUM(model.parameters()), **options)
    optimizers[0].param_groups[0]["lr"] = 0.01

    def work(place: int) -> None:
        for steps in ((3, 8), (5, 1)):
            for step in range(steps[place]):
                backward(models[place], step)
                optimizers[place].step()
            optimizers[place].finish()
            ends[place].append([parameter.detach().clone() for parameter in models[place].parameters()])

    ends: list[list[list[torch.Tensor]]] = [[], []]
    together([lambda place=place: work(place) for place in range(2)])
    assert [len(end) for end in ends] == [2, 2]
    for one, other in zip(*ends):
        assert all(torch.equal(left, right) for left, right in zip(one, other))
    assert not any(torch.equal(left, right) for left, right in zip(ends[0][0], ends[0][1]))
    for one in connected:
        one.close()


@case
def a_worker_that_comes_back_goes_on_with_the_servers_parameters() -> None:
    connected, models, optimizers = pair("back", make=lambda model: torch.optim.SGD(model.parameters(), lr=0.1))
    for step in range(3):
        backward(models[1], step)
        optimizers[1].step()
    optimizers[1].param_groups[0]["lr"] = 0.05
    state = optimizers[1].state_dict()
    connected[1].close()
    backward(models[0], 9)
    optimizers[0].step()
    again = network(8)
    with connect(1, 2) as replacing:
        optimizer = AsyncSGD(torch.optim.SGD(again.parameters(), lr=0.1), replacing, name="back")
        optimizer.load_state_dict(state)
        assert same(again, models[0])
        assert optimizer.param_groups[0]["lr"] == 0.05
        assert optimizer.state_dict()["steps"] == state["steps"]
        optimizer.close()
    connected[0].close()


@case
def a_name_is_of_one_training() -> None:
    """Another one would train the first one's parameters in place of its own. Only a lost worker's name is taken again."""
    first, second = network(1), network(2)

    def make(model: torch.nn.Module, connected: Any, **options: Any) -> AsyncSGD:
        return AsyncSGD(torch.optim.SGD(model.parameters(), lr=0.1), connected, name="used", **options)

    with connect() as connected:
        optimizer = make(first, connected)
        before = [parameter.clone() for parameter in second.parameters()]
        with pytest.raises(herringbone.ArgumentError, match="has an AsyncSGD named 'used' already; pass another"):
            make(second, connected)
        optimizer.finish()
        backward(first, 0)
        optimizer.step()
    with connect() as connected:  # its steps went on after finish()
        optimizer = make(again := network(3), connected)
        assert same(again, first)
        optimizer.finish()
    with connect() as connected:
        with pytest.raises(
            herringbone.ArgumentError, match="'used' on these servers has ended with finish.*restore=True to continue"
        ):
            make(second, connected)
        assert all(map(torch.equal, second.parameters(), before))
        optimizer = make(second, connected, restore=True)
        assert same(second, first)
        backward(second, 1)
        optimizer.step()
    with connect() as connected:
        make(again, connected)
        assert same(again, second), "which is a training that has not ended"


@case
def a_name_is_free_again_after_its_constructor_has_failed() -> None:
    """What it had opened takes part in nothing: the next attempt over the same connection, and the other worker, do not wait for it."""
    connected = [connect(rank, 2) for rank in range(2)]
    model, right = network(0), network(1)
    # The constructor opens a table of float32, and fails with that of float64, which has another length.
    other = connected[1].table("corrected 0 float64", rows=9, width=3, dtype="float64")
    wrong = [*network(1).parameters(), torch.nn.Parameter(torch.ones(2, dtype=torch.float64))]
    with pytest.raises(herringbone.TableError, match="corrected 0 float64"):
        AsyncSGD(torch.optim.SGD(wrong, lr=0.1), connected[1], name="corrected")
    made = together(
        [
            lambda: AsyncSGD(torch.optim.SGD(model.parameters(), lr=0.1), connected[0], name="corrected"),
            lambda: AsyncSGD(torch.optim.SGD(right.parameters(), lr=0.1), connected[1], name="corrected"),
        ]
    )
    assert same(model, right) and same(right, network(0))
    for step in range(2):
        for place, one in enumerate((model, right)):
            backward(one, step)
            made[place].step()
    together([optimizer.finish for optimizer in made])
    assert same(model, right) and not same(right, network(0))
    with pytest.raises(herringbone.ArgumentError, match="has an AsyncSGD named 'corrected' already"):
        AsyncSGD(torch.optim.SGD(right.parameters(), lr=0.1), connected[1], name="corrected")
    other.close()
    for one in connected:
        one.close()


@case
def numbers_of_a_state_reach_the_servers() -> None:
    model, reference = network(1), network(1)
    with connect() as connected:
        optimizer = AsyncSGD(MOMENTUM(model.parameters()), connected, staleness="none", name="numbers")
        plain = MOMENTUM(reference.parameters())
        for step in range(6):
            backward(model, step)
            backward(reference, step)
            if step == 2:
                state = optimizer.state_dict()
                state["param_groups"][0] |= {"momentum": 0.5, "weight_decay": 0.1}
                optimizer.load_state_dict(state)
                plain.param_groups[0].update(momentum=0.5, weight_decay=0.1)
            if step == 4:
                optimizer.param_groups[0]["momentum"] = plain.param_groups[0]["momentum"] = 0.7
            optimizer.step()
            plain.step()
        for one, other in zip(model.parameters(), reference.parameters()):
            assert torch.allclose(one, other, rtol=1e-6, atol=1e-6)
        state = optimizer.state_dict()
        [group] = state["param_groups"]
        cases: list[tuple[Any, str]] = [
            ({}, "load_state_dict: the state lacks 'state'"),
            (None, "the state is a NoneType; pass the result of state_dict"),
            ({**state, "steps": None}, "'steps' is None, not a whole number"),
            (torch.optim.SGD(model.parameters(), lr=1).state_dict(), "the state lacks 'steps'"),
            (
                {**torch.optim.Adam(model.parameters()).state_dict(), "steps": 1},
                "group 0 of the state lacks 'momentum', 'dampening'; pass the result of",
            ),
            ({**state, "param_groups": [group, group]}, r"groups of \[4, 4\] parameters, and this optimizer \[4\]"),
            ({**state, "param_groups": [{**group, "lr": "x"}]}, "lr is 'x'; pass a number"),
            ({**state, "param_groups": [{**group, "dampening": 0.5}]}, "servers have SGD with dampening=0 only"),
            (
                {**state, "param_groups": [{**group, "momentum": 0}]},
                "momentum 0.7, and would be sgd with momentum 0.0, but servers can change only",
            ),
            ({**state, "param_groups": [{**group, "nesterov": True}]}, "and would be nag"),
        ]
        # A state of a version of torch whose SGD has no such flag.
        optimizer.load_state_dict({**state, "param_groups": [{key: group[key] for key in group if key != "nesterov"}]})
        optimizer.load_state_dict(state)
        for bad, words in cases:
            with pytest.raises((TypeError, herringbone.ArgumentError), match=words):
                optimizer.load_state_dict(bad)
            assert repr(optimizer.state_dict()) == repr(state)
        optimizer.param_groups[0]["momentum"] = 0
        steps = state["steps"]
        with pytest.raises(herringbone.ArgumentError, match="AsyncSGD.step: group 0 was made as sgd"):
            optimizer.step()
        assert optimizer.state_dict()["steps"] == steps, "nothing is pushed"


class Lost(Exception):
    """A worker ends here."""


def nobody_trains_without_the_first_values_of_rank_0(options: Any, is_half: bool, name: str) -> None:
    """Rank 0 is lost before it gives them, or while what is pushed takes the place of values."""

    def assign(stretch: Any, steps: int) -> None:
        if is_half:
            stretch.table.tune(assigns=1)
        raise Lost

    def first() -> None:
        with connect(0, 2) as connected, pytest.raises(Lost):
            AsyncSGD(MOMENTUM(network(0).parameters()), connected, name=name, staleness="none", **options)

    def second() -> str:
        with connect(1, 2) as connected, pytest.raises(herringbone.TableError) as error:
            AsyncSGD(MOMENTUM(network(1).parameters()), connected, name=name, staleness="none", **options)
        return str(error.value)

    with mock.patch.object(async_sgd._Stretch, "assign", assign):
        assert "rank 0 was lost before it had given its first values" in str(together([first, second])[1])


def a_worker_that_is_lost_while_all_begin_is_replaced(victim: int, where: str, options: Any, name: str) -> None:
    """Its replacement ends no step again, with which it would be ahead of the others, and gives its values whole."""
    dying: set[int] = set()
    again = threading.Event()
    owner, method = (Meeting, "meet") if where == "meet" else (herringbone.Table, "pull_range")
    plain = getattr(owner, method)

    def dies(self: Any, *arguments: Any) -> Any:
        if threading.get_ident() in dying and (where == "meet" or self.optimizer == "sgd"):
            raise Lost
        if where == "meet" or self.optimizer == "sgd":
            again.set()
        return plain(self, *arguments)

    models = [network(rank) for rank in range(2)]

    def make(rank: int, connected: Any) -> AsyncSGD:
        sgd = torch.optim.SGD(models[rank].parameters(), lr=0.5)
        return AsyncSGD(sgd, connected, name=name, staleness="none", **options)

    def work(rank: int) -> Any:
        if rank == victim:
            dying.add(threading.get_ident())
            with connect(rank, 2) as connected, pytest.raises(Lost):
                make(rank, connected)
            dying.clear()
        elif where == "assign":
            again.wait()  # a rank 0 that has said goodbye is not waited for
        connected = connect(rank, 2)
        return connected, make(rank, connected)

    with mock.patch.object(owner, method, dies):
        made = together([lambda rank=rank: work(rank) for rank in range(2)])
    assert all(torch.equal(*each) for each in zip(models[1].parameters(), network(0).parameters())), "rank 0's first values"
    for model in models:
        backward(model, 3)
    together([optimizer.step for _, optimizer in made])
    for connected, optimizer in made:
        if "max_staleness" in options:
            assert optimizer.state_dict()["steps"] == 2
        optimizer._pull()
        connected.close()
    backward(reference := network(0), 3)
    torch.optim.SGD(reference.parameters(), lr=0.5).step()
    for model in models:
        for one, other in zip(model.parameters(), reference.parameters()):
            assert torch.allclose(one, other, rtol=1e-6, atol=1e-7)


@case
def a_gradient_with_a_nan_leaves_nothing_of_its_step_behind() -> None:
    """Of two types of elements, so of two tables: the first has no NaN."""
    parameters = [torch.nn.Parameter(torch.ones(4)), torch.nn.Parameter(torch.ones(2, 3, dtype=torch.float64))]
    parameters.append(torch.nn.Parameter(torch.ones(2)))
    with connect() as connected:
        for number, options in enumerate([{}, {"max_staleness": 0}, {"first_k": 1}]):
            for parameter in parameters:
                parameter.detach().fill_(1)
                parameter.grad = torch.ones_like(parameter)
            assert parameters[1].grad is not None
            parameters[1].grad[1, 2] = torch.inf if number else torch.nan
            sgd = torch.optim.SGD(parameters, lr=0.5)
            optimizer = AsyncSGD(sgd, connected, name=f"nan {number}", staleness="none", **options)
            with pytest.raises(herringbone.TableError, match=r"1 of group 0, of shape \(2, 3\), has a NaN.*use a smaller lr"):
                optimizer.step()
            for parameter in parameters:
                parameter.grad = None
            optimizer.step()
            assert all(torch.equal(parameter, torch.ones_like(parameter)) for parameter in parameters)
            assert optimizer.state_dict()["steps"] == 2, "one for the first values, and one without gradients"


@case
def arguments_that_make_no_sense_are_named() -> None:
    parameters = list(network(0).parameters())
    sgd = torch.optim.SGD(parameters, lr=0.1)
    with connect() as connected:
        cases: list[tuple[type[Exception], str, Any]] = [
            (TypeError, "optimizer is a list; pass an optimizer of torch", lambda: AsyncSGD(parameters, connected)),
            (TypeError, "server is a str; pass a herringbone.ParameterServer", lambda: AsyncSGD(sgd, "localhost:1")),
            (herringbone.ArgumentError, "staleness is 'half'", lambda: AsyncSGD(sgd, connected, staleness="half")),
            (herringbone.ArgumentError, "max_staleness is -1", lambda: AsyncSGD(sgd, connected, max_staleness=-1)),
            (herringbone.ArgumentError, "first_k is 0; pass a number", lambda: AsyncSGD(sgd, connected, first_k=0)),
            (herringbone.ArgumentError, "are both given", lambda: AsyncSGD(sgd, connected, first_k=2, max_staleness=1)),
            (herringbone.ArgumentError, "have no LBFGS", lambda: AsyncSGD(torch.optim.LBFGS(parameters), connected)),
            (
                herringbone.ArgumentError,
                "dampening is 0.5",
                lambda: AsyncSGD(torch.optim.SGD(parameters, lr=0.1, momentum=0.9, dampening=0.5), connected),
            ),
            (herringbone.ArgumentError, "adam divides", lambda: AsyncSGD(torch.optim.Adam(parameters), connected)),
            (
                herringbone.ArgumentError,
                "parameter 0 is float16",
                lambda: AsyncSGD(torch.optim.SGD([torch.nn.Parameter(torch.zeros(3).half())], lr=1), connected),
            ),
        ]
        for kind, words, call in cases:
            with pytest.raises(kind, match=words):
                call()
        made = AsyncSGD(sgd, connected, name="groups")
        with pytest.raises(herringbone.ArgumentError, match="add_param_group: all parameters have to be given at the beginning"):
            made.add_param_group({"params": [torch.nn.Parameter(torch.zeros(3))]})
        assert len(made.param_groups) == 1


SYNC, FIRST = {"max_staleness": 0}, {"first_k": 2}
variant(one_worker_trains_as_torch_does, "momentum", MOMENTUM, 1e-6, is_usual=True)
variant(one_worker_trains_as_torch_does, "nesterov", NESTEROV, 1e-6)
variant(one_worker_trains_as_torch_does, "adagrad", ADAGRAD, 1e-6)
variant(one_worker_trains_as_torch_does, "rmsprop", RMSPROP, 1e-6)
variant(one_worker_trains_as_torch_does, "adamw", ADAMW, 1e-5)
for kind, options in {"async": {}, "sync": SYNC, "first": FIRST}.items():
    variant(all_finish_with_the_same_parameters, kind, options)
    for is_half in (False, True):
        is_usual = kind == "async" and is_half
        variant(nobody_trains_without_the_first_values_of_rank_0, f"{kind}_{is_half}", options, is_half, is_usual=is_usual)
variant(all_finish_with_the_same_parameters, "bounded", {"max_staleness": 2}, is_usual=True)
for kind, options in {"sync": SYNC, "first": FIRST}.items():
    for victim, where in ((0, "meet"), (1, "meet"), (0, "assign")):
        is_usual = where == "assign" and kind == "sync"
        name = f"{victim}_{where}_{kind}"
        variant(a_worker_that_is_lost_while_all_begin_is_replaced, name, victim, where, options, is_usual=is_usual)

if __name__ == "__main__":
    cases.run(MORE if sys.argv[1:] == ["more"] else CASES, 0)
