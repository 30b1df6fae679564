"""A group with another backend for CUDA's tensors, over a torch that lets Python define no backend, as those before 2.14 do.

``BACKEND`` is the name by which the program asks for Herringbone: its own, or "gloo", in whose place it then is.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import cases
import torch._C._distributed_c10d as native
from cases import error_of

CASES, case = cases.registry()
BACKEND = os.environ.get("BACKEND", "herringbone")


class Underivable(native.Backend):
    """torch's class, of which Python makes no other."""

    def __init__(self, *_: Any) -> None:
        raise TypeError("No constructor defined!")


@case
def tensors_of_the_other_backends_device_are_refused() -> None:
    let_stand_in(OnCuda())  # type: ignore[arg-type]
    calls = [
        lambda: dist.all_reduce(torch.ones(3)),
        lambda: dist.broadcast(torch.ones(3), 0, async_op=True),
        lambda: dist.all_gather_into_tensor(torch.ones(6), torch.ones(3)),
        lambda: dist.send(torch.ones(3), 1 - dist.get_rank()),
        lambda: dist.recv(torch.ones(3), 1 - dist.get_rank()),
    ]
    for call in calls:
        error_of(herringbone.UnsupportedError, call, "other for the tensors of cuda", 'new_group(backend="other")', "torch 2.14")
    let_stand_in(None)


@case
def the_hosts_tensors_are_taken() -> None:
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [dist.get_world_size()] * 3


@case
def a_group_for_all_devices_has_no_others() -> None:
    assert dist.group.WORLD.member.foreign == {"cuda": "other"}
    for name in (BACKEND, f"cpu:{BACKEND},cuda:{BACKEND}"):
        group: Any = dist.new_group(backend=name)
        assert group.member.foreign == {}, name


class OnCuda:
    """Stands for CUDA: the CPU's tensors are taken for its."""

    device_type = "cuda"


if __name__ == "__main__":
    if BACKEND == "gloo":
        # Set before, it would have torch's import make the backend, and with it what this looks at.
        os.environ["HERRINGBONE_REPLACE"] = "gloo"
    native.Backend = Underivable  # type: ignore[misc]
    import torch
    import torch.distributed as dist

    # torch before 2.14 asks nobody how to make a Gloo group.
    vars(dist.distributed_c10d).pop("_create_gloo_process_group", None)
    dist.Backend.register_backend("other", lambda *_: None, devices=["cuda"])

    import herringbone.torch.group
    from herringbone.torch.devices import let_stand_in
    from herringbone.torch.dispatched import DISPATCHES

    assert not DISPATCHES
    # Nor do these say whether a group has other backends.
    herringbone.torch.group.shares_group = lambda opts: False
    # Newer ones ask each group for its backends.
    dist.distributed_c10d._maybe_attach_flight_recorder = lambda *_: None
    dist.init_process_group(f"cpu:{BACKEND},cuda:other", timeout=timedelta(seconds=60))
    cases.run(CASES, dist.get_rank())
    dist.destroy_process_group()
