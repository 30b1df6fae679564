"""Processes that form a group anew again and again: `reconfigured.py PORT OWN SCENARIO` is one; the test keeps the store."""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import get_context
from typing import Any
from unittest.mock import patch

import herringbone
import torch
import torch.distributed as dist
from cases import error_of
from herringbone.torch import reconfiguring
from herringbone.torch.rendezvous import meet

COUNT = 300_000
SECONDS = 20.0
SOON = 5.0
"""The death of a process that is waited for is told within so long, whatever the timeout: in tenths of a second, the rest is margin."""

OWN = int(sys.argv[2]) if __name__ == "__main__" else 0
STARTED = 5
"""Members that are there from the beginning, in the scenarios of five."""


class Job:
    """What a process knows of the others. They count the formations alike."""

    def __init__(self, port: int) -> None:
        self.store = dist.TCPStore("127.0.0.1", port, None, False, timedelta(seconds=60), wait_for_workers=False)
        self.round = 0

    def handles(self, members: list[int]) -> list[str]:
        """Give the own handle, and take those of the members."""
        self.store.set(f"{self.round}/{OWN}", dist._get_reconfigure_handle())
        return [self.store.get(f"{self.round}/{member}").decode() for member in members]

    def form(self, members: list[int], seconds: float = SECONDS, as_set: bool = False) -> float:
        """Form the group of ``members``, and check sums of it; how long the formation took."""
        self.round += 1
        handles: Any = self.handles(members)
        began = time.monotonic()
        dist._reconfigure(self.round, set(handles) if as_set else handles, timeout=timedelta(seconds=seconds)).wait()
        took = time.monotonic() - began
        assert dist.get_world_size() == len(members) and (as_set or dist.get_rank() == members.index(OWN))
        assert dist.get_process_group_ranks(dist.group.WORLD) == list(range(len(members)))
        check(members)
        return took

    def refused(
        self,
        members: list[int],
        kind: type[BaseException],
        *texts: str,
        seconds: float = SECONDS,
        before: Callable[[], object] = lambda: None,
    ) -> Any:
        """The error of a formation that cannot be; the group is usable again once it is formed of others."""
        self.round += 1
        handles, limit = self.handles(members), timedelta(seconds=seconds)
        before()
        error = error_of(kind, lambda: dist._reconfigure(self.round, handles, timeout=limit), *texts)
        assert isinstance(error, dist.DistBackendError)
        error_of(herringbone.errors.ClosedError, lambda: dist.all_reduce(torch.ones(1)), "call reconfigure")
        return error

    def by_place(self, members: list[int]) -> list[int]:
        """The members, the one first in whose process they meet."""
        self.round += 1
        secrets = [json.loads(handle)["secret"] for handle in self.handles(members)]
        return [member for _, member in sorted(zip(secrets, members))]

    def wait_for(self, name: str, members: list[int]) -> None:
        """Go on once all the members are here, without the group."""
        self.store.set(f"{name}/{OWN}", "")
        self.store.wait([f"{name}/{member}" for member in members], timedelta(seconds=60))


def check(members: list[int]) -> None:
    """Sums and means are those of the members."""
    tensor = torch.full((COUNT,), float(OWN + 1))
    dist.all_reduce(tensor)
    assert (tensor == sum(members) + len(members)).all(), (tensor[0].item(), members)
    mean = torch.tensor([float(OWN)])
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    torch.testing.assert_close(mean.item(), sum(members) / len(members))
    gathered = [torch.zeros(1, dtype=torch.int64) for _ in members]
    dist.all_gather(gathered, torch.tensor([OWN]))
    assert sorted(int(member) for member in gathered) == sorted(members)
    dist.monitored_barrier()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def begin(enable: bool, store: dist.Store, size: int) -> None:
    options = {"enable_reconfigure": True} if enable else {}
    dist.init_process_group("herringbone", store=store, rank=OWN, world_size=size, timeout=timedelta(seconds=SECONDS), **options)
    assert dist._supports_reconfigure()


def five(job: Job) -> None:
    """Odd subsets, orders, mistakes, calls in flight, members that do not come or differ, and deaths, one after the other."""
    begin(True, job.store, STARTED)
    error_of(herringbone.errors.ClosedError, lambda: dist.all_reduce(torch.ones(1)), "enable_reconfigure=True")
    everyone = list(range(STARTED))
    job.form(everyone)
    mistakes(job, everyone)
    again_and_again(job, everyone)
    in_flight(job, everyone)
    who_does_not_come(job, everyone)
    who_differs(job, everyone)
    job.form(everyone)

    # One dies in a sum, and the next in a formation; then the others are one, three, and three with a new one.
    if OWN == 1:
        job.wait_for("one dies", everyone)
        die()
    job.wait_for("one dies", everyone)
    lost = error_of(herringbone.PeerLostError, sum_on)
    assert lost.ranks == (1,)
    left = [0, 2, 3, 4]
    assert job.form(left) < SOON
    for place in (-1, 0):
        victim = job.by_place(left)[place]
        who_dies_in_it(job, left, victim)
        left.remove(victim)
        assert job.form(left) < SOON

    # Two groups of one, and then one again.
    job.form([OWN])
    job.form(left[::-1])
    print("passed", flush=True)


def sum_on() -> None:
    while True:
        tensors = [torch.ones(COUNT) for _ in range(4)]
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
            work.wait()


def mistakes(job: Job, everyone: list[int]) -> None:
    """Wrong handles are told before the group is left."""
    job.round += 1
    handles = job.handles(everyone)
    wrong: list[tuple[Any, str]] = [
        ([], "there are no handles"),
        ([handle for handle in handles if handle != handles[OWN]], "none of the 4 handles belongs to this group"),
        ([*handles, handles[1]], "the handles of ranks 1 and 5 belong to one process"),
        ([*handles, "gloo:1:-1:1:127.0.0.1:29500"], "is not a handle of herringbone"),
        ([*handles, handles[0].replace('"herringbone": 1', '"herringbone": 99')], "has version 99"),
    ]
    for given, text in wrong:
        error_of(ValueError, lambda given=given: dist._reconfigure(9999, given), text)
    error_of(ValueError, lambda: dist._reconfigure(9999, handles, timeout=timedelta(0)), "timeout is 0 s")
    check(everyone)


def again_and_again(job: Job, everyone: list[int]) -> None:
    """The same threads and descriptors after twenty formations of odd subsets, and one of old handles."""
    old = job.handles(everyone)
    for turn in range(20):
        members = [member for member in everyone if turn % 3 == 0 or (member + turn) % 2 == 0]
        members = members[turn % len(members) :] + members[: turn % len(members)]
        if OWN in members:
            job.form(members, as_set=turn % 2 == 1)
        else:
            job.round += 1
        if turn == 1:
            taken = resources()
    job.wait_for("formed twenty times", everyone)
    deadline = time.monotonic() + 3 * SOON
    # The connections of a member depend on its place in the last formation; what leaks, leaks in each of them.
    while any(after > before + STARTED for before, after in zip(taken, resources())):
        assert time.monotonic() < deadline, (taken, resources())
        time.sleep(0.1)
    dist._reconfigure(5000, old).wait()
    check(everyone)
    error_of(herringbone.errors.RendezvousError, lambda: dist._reconfigure(5000, old), "has been used")
    job.wait_for("used twice", everyone)
    job.form(everyone)


def resources() -> tuple[int, int]:
    return len(os.listdir("/proc/self/fd")), threading.active_count()


def in_flight(job: Job, everyone: list[int]) -> None:
    """What runs as a rank reconfigures fails there, and the others see that it has left; no sum of the new group is mixed."""
    tensor = torch.ones(4 * COUNT)
    if OWN == 0:
        job.wait_for("in flight", everyone)
        works = []
    else:
        works = [dist.all_reduce(tensor, async_op=True) for _ in range(3)]
        received = dist.irecv(torch.zeros(3), 0)
        works.append(received)
        job.wait_for("in flight", everyone)
    job.form(everyone)
    for work in works:
        error_of(herringbone.errors.HerringboneError, work.wait)
    check(everyone)


def who_does_not_come(job: Job, everyone: list[int]) -> None:
    began = time.monotonic()
    if OWN == 3:
        job.round += 1
        job.handles(everyone)
    else:
        error = job.refused(everyone, herringbone.errors.RendezvousError, "rank 3 of the 5", "within 2 s", seconds=2)
        assert error.ranks == (3,) and 1.5 < time.monotonic() - began < 2 + SOON, error
    job.wait_for("refused", everyone)
    if OWN == 3:
        # It is late, and told what the others were told.
        error = error_of(
            herringbone.errors.RendezvousError, lambda: dist._reconfigure(job.round, job.handles(everyone)), "rank 3"
        )
    job.wait_for("told", everyone)
    if OWN == 3:
        job.round += 1
        return job.wait_for("without", everyone)
    job.form([0, 1, 2, 4])
    job.wait_for("without", everyone)


def who_differs(job: Job, everyone: list[int]) -> None:
    job.form(everyone)
    began = time.monotonic()
    job.refused(everyone[::-1] if OWN == 2 else everyone, herringbone.errors.MismatchError, "ranks disagree")
    assert time.monotonic() - began < SOON
    job.form(everyone)


def who_dies_in_it(job: Job, members: list[int], victim: int) -> None:
    """A member that has come dies before the last one comes: the others need not wait for their timeout."""
    late = next(member for member in members if member != victim)
    began = [0.0]

    def before() -> None:
        if victim == OWN:
            threading.Timer(1.0, die).start()
        if late == OWN:
            time.sleep(2.5)
        began[0] = time.monotonic()

    rank = members.index(victim)
    error = job.refused(members, herringbone.PeerLostError, f"rank {rank} of the new group", before=before)
    assert error.ranks == (rank,) and time.monotonic() - began[0] < SOON, error


def joining(job: Job) -> None:
    """Three train; one dies, two go on, and a new one joins and takes the model of the first."""
    torch.manual_seed(OWN)
    model = torch.nn.Linear(4, 1)
    if OWN == 3:
        begin(True, dist.HashStore(), 4)
        step = 0
    else:
        begin(False, job.store, 3)
        handles = job.handles([0, 1, 2])
        step = train(model, 0, 5)
        if OWN == 1:
            die()
        error_of(RuntimeError, lambda: train(model, step, 1), "rank 1")
        dist._reconfigure(1, [handles[0], handles[2]]).wait()
        check([0, 2])
        step = train(model, step, 5)
        job.store.set("a new one is wanted", "")
    job.round = 2
    dist._reconfigure(2, set(job.handles([0, 2, 3]))).wait()
    assert dist.get_rank() == [0, 2, 3].index(OWN)
    steps = torch.tensor(step)
    for tensor in [*model.state_dict().values(), steps]:
        dist.broadcast(tensor, 0)
    assert train(model, int(steps), 5) == 15
    weights = [torch.zeros(1, 4) for _ in range(3)]
    dist.all_gather(weights, model.weight.detach())
    assert all(torch.equal(weights[0], other) for other in weights)
    half = dist.group.WORLD.split_group([0, 2])
    if half is not None:
        tensor = torch.ones(10)
        half.allreduce([tensor]).wait()
        assert (tensor == 2).all()
    print("passed", flush=True)


def train(model: torch.nn.Module, step: int, steps: int) -> int:
    """The mean gradient of the members is exactly what DDP leaves."""
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    for now in range(step, step + steps):
        model.zero_grad()
        inputs = torch.full((2, 4), float(now + dist.get_rank()))
        wrapped(inputs).sum().backward()
        mean = sum(2.0 * (now + rank) for rank in range(dist.get_world_size())) / dist.get_world_size()
        torch.testing.assert_close(model.weight.grad, torch.full((1, 4), mean))
        with torch.no_grad():
            model.weight -= 0.01 * model.weight.grad
    return step + steps


def outlive() -> None:
    """What a child does that its parent leaves behind, such as a worker of a DataLoader."""
    os.close(1)
    os.close(2)
    time.sleep(30)


def stopped(job: Job) -> None:
    """A member's process is stopped, and another leaves a child: the one that is left is told in time all the same."""
    everyone = [0, 1, 2]
    begin(False, job.store, 3)
    job.form(everyone)
    halts, is_left, dies = job.by_place(everyone)
    handles = job.handles(everyone)
    if dies == OWN:
        get_context("fork").Process(target=outlive).start()
    job.wait_for("ready", everyone)
    if halts == OWN:
        os.kill(os.getpid(), signal.SIGSTOP)
    if dies == OWN:
        die()
    time.sleep(1)
    for number, member, kind in (
        (100, dies, herringbone.PeerLostError),
        (101, halts, herringbone.errors.RendezvousError),
    ):
        members = [handles[is_left], handles[member]]
        attempt = functools.partial(dist._reconfigure, number, members, timeout=timedelta(seconds=2))
        began = time.monotonic()
        error: Any = error_of(kind, attempt, "rank 1 of the new group")
        assert error.ranks == (1,) and time.monotonic() - began < 2 + SOON, error
    dist._reconfigure(102, [handles[is_left]]).wait()
    check([OWN])
    job.store.set("passed", "")


def connecting(job: Job) -> None:
    """A member dies once all have met, before they are connected; and one is interrupted while it waits for the others."""
    everyone = [0, 1, 2]
    begin(False, job.store, 3)
    if OWN == 1:

        def meet_and_die(*arguments: Any) -> Any:
            meet(*arguments)
            die()

        patch.object(reconfiguring, "meet", meet_and_die).start()
    began = time.monotonic()
    error = job.refused(everyone, herringbone.PeerLostError, "rank 1 of the new group", seconds=3)
    assert error.ranks == (1,) and time.monotonic() - began < 3 + SOON

    job.round += 1
    handles = job.handles([0, 2])
    if OWN == 0:
        # Whoever started the tests in the background has them ignore it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Timer(1.0, signal.raise_signal, [signal.SIGINT]).start()
        error_of(KeyboardInterrupt, lambda: dist._reconfigure(job.round, handles))
    job.wait_for("interrupted", [0, 2])
    if OWN == 2:
        error_of(herringbone.PeerLostError, lambda: dist._reconfigure(job.round, handles), "rank 0 of the new group")
    job.form([2, 0])
    print("passed", flush=True)


SCENARIOS: dict[str, Callable[[Job], None]] = {
    "connecting": connecting,
    "five": five,
    "joining": joining,
    "stopped": stopped,
}

if __name__ == "__main__":
    SCENARIOS[sys.argv[3]](Job(int(sys.argv[1])))
    dist.destroy_process_group()
