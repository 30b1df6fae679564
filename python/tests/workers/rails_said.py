"""Whether hosts add up first, and why not: each case is a group whose ranks are told what their hosts and devices are called."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Mapping
from datetime import timedelta

import cases
import torch
import torch.distributed as dist
from simulated import LanedStandIn

import herringbone

CASES, case = cases.registry()

NONE = "no ranks add up on their host first: "
VARIABLE = "HERRINGBONE_LOCAL_SUMS"


class Named(LanedStandIn):
    """A stand-in with a name. Each group has one: its streams do not know what those of earlier groups did to memory."""

    def __init__(self, name: str) -> None:
        super().__init__(seed=3)
        self.name = name

    def identity(self, tensor: torch.Tensor) -> str:
        return self.name


@contextlib.contextmanager
def placed(variables: Mapping[str, str]) -> Iterator[None]:
    """Let variables of this process have these values in the body."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def check_said(hosts: str, devices: str, said: str, setting: str = "auto") -> None:
    """A group of as many ranks as there are names says this, and all its calls have the right values."""
    size, rank = len(hosts.split(",")), dist.get_rank()
    group = dist.new_group(list(range(size)))
    if rank >= size:
        return
    accelerator = Named(devices.split(",")[rank])
    with placed({"NCCL_HOSTID": hosts.split(",")[rank], VARIABLE: setting}):
        first = torch.ones(1)
        with torch.device("meta"):
            # A program's new tensors can be on its device, and what the ranks tell each other is on the host all the same.
            dist.all_reduce(first, group=group)
    assert group.member.on_hosts() == [said], group.member.on_hosts()
    for length in (0, 1, 1009):
        check_values(group, accelerator, length)
    dist.destroy_process_group(group)
    assert accelerator.hazards() == [], accelerator.hazards()
    accelerator.end()


def check_values(group: dist.ProcessGroup, accelerator: Named, length: int) -> None:
    def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
        accelerator.synchronize()
        assert torch.equal(actual, expected), f"{actual} is not {expected}"

    size, rank = dist.get_world_size(group), dist.get_rank(group)
    tensor, whole, part = torch.full((length,), rank + 1.0), torch.zeros(size * length), torch.zeros(length)
    dist.all_reduce(tensor, group=group)
    same(tensor, torch.full((length,), size * (size + 1) / 2))
    dist.all_gather_into_tensor(whole, torch.full((length,), float(rank)), group=group)
    same(whole, torch.arange(size, dtype=torch.float32).repeat_interleave(length))
    dist.reduce_scatter_tensor(part, whole, group=group)
    same(part, torch.full((length,), float(size * rank)))
    for root in range(size):
        moved, folded = torch.full((length,), float(rank)), torch.ones(length)
        dist.broadcast(moved, root, group=group)
        same(moved, torch.full((length,), float(root)))
        dist.reduce(folded, root, group=group)
        same(folded, torch.full((length,), float(size if root == rank else 1)))


def said_case(name: str, *arguments: str) -> None:
    """Add a case of :func:`check_said`."""
    CASES[name] = functools.partial(check_said, *arguments)


TWO_HOSTS = "the 2 ranks of each of 2 hosts add up first, by gloo"
said_case("two_hosts", "a,a,b,b", "0,1,0,1", TWO_HOSTS)
said_case("two_hosts_whose_ranks_take_turns", "a,b,a,b", "0,0,1,1", TWO_HOSTS)
said_case("a_host_between_ranks_of_another", "a,b,b,a", "0,0,1,1", TWO_HOSTS)
said_case("one_host", "a,a,a", "0,1,2", "the 3 ranks of each of 1 host add up first, by gloo")
UNEVEN = "hosts differ in the number of their ranks: that of rank 0 has 3, that of rank 3 has 1"
said_case("hosts_with_other_numbers_of_ranks", "a,a,a,b", "0,1,2,0", NONE + UNEVEN)
said_case("ranks_that_share_a_device", "a,a,b,b", "0,0,0,1", NONE + "ranks 0 and 1 share a device")
said_case("hosts_of_one_rank", "a,b", "0,0", NONE + "no host has several ranks")
said_case("switched_off", "a,a,b,b", "0,1,0,1", NONE + "it is switched off", "off")


def check_refused(settings: list[str], *texts: str) -> None:
    """All ranks get an error with these texts at once, at the first call and at the next one."""
    group, accelerator = dist.new_group(timeout=timedelta(seconds=300)), Named(str(dist.get_rank()))
    with placed({"NCCL_HOSTID": f"host {dist.get_rank() // 2}", VARIABLE: settings[dist.get_rank()]}):
        for _ in range(2):
            cases.error_of(herringbone.ConfigError, lambda: dist.all_reduce(torch.ones(3), group=group), VARIABLE, *texts)
    dist.destroy_process_group(group)
    accelerator.end()


@case
def one_rank_whose_setting_cannot_be_used() -> None:
    check_refused(["gloo", "gloo", "glo", "gloo"], "rank 2 has 'glo', which cannot be used", "auto, off, nccl or gloo")


@case
def one_rank_with_another_setting() -> None:
    check_refused(["auto", "auto", "auto", "off"], "rank 0 has 'auto' and rank 3 has 'off'", "the same value on all ranks")


if __name__ == "__main__":
    dist.init_process_group("herringbone", timeout=timedelta(seconds=60))
    cases.run(CASES, dist.get_rank())
    dist.destroy_process_group()
