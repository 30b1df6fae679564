"""The last rank ends without a word: what the others are told, by the interface that the first argument names, and after their end."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import numpy as np


def numpy_arrays() -> tuple[Callable[[], object], Callable[[], object]]:
    import herringbone

    group = herringbone.init()
    return lambda: group.all_reduce(np.ones(4)), group.close


def torch() -> tuple[Callable[[], object], Callable[[], object]]:
    import torch
    import torch.distributed as dist

    dist.init_process_group("herringbone")
    group = dist.group.WORLD
    return lambda: dist.all_reduce(torch.ones(4), group=group), lambda: group.abort()


def horovod() -> tuple[Callable[[], object], Callable[[], object]]:
    import herringbone.horovod.numpy as hvd

    hvd.init()
    return lambda: hvd.allreduce(np.ones(4)), hvd.shutdown


def kvstore() -> tuple[Callable[[], object], Callable[[], object]]:
    import herringbone
    from herringbone import kvstore

    group = herringbone.init()
    kv = kvstore.create("dist_sync", communicator=group)
    kv.init(3, np.ones(4))

    def call() -> None:
        kv.push(3, np.ones(4))
        kv.pull(3, out=np.empty(4))

    return call, group.close


def rabit() -> tuple[Callable[[], object], Callable[[], object]]:
    from herringbone import rabit

    rabit.init(["rabit_timeout_sec=2"])
    return lambda: rabit.allreduce(np.ones(4), rabit.SUM), lambda: None


def averaging() -> tuple[Callable[[], object], Callable[[], object]]:
    import torch as pytorch

    import herringbone
    from herringbone.optim import LocalSGD

    group, model = herringbone.init(), pytorch.nn.Linear(2, 1)
    local = LocalSGD(model, pytorch.optim.SGD(model.parameters(), lr=0.1), sync_every=1, group=group)

    def call() -> None:
        local.regroup(group) if local._is_closed else local.sync()

    return call, local.close


def main() -> None:
    call, end = {
        "numpy": numpy_arrays,
        "torch": torch,
        "horovod": horovod,
        "kvstore": kvstore,
        "rabit": rabit,
        "averaging": averaging,
    }[sys.argv[1]]()
    call()
    if int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1:
        os._exit(0)
    for before in (lambda: None, end):
        before()
        try:
            call()
        except Exception as error:
            print(f"{type(error).__name__}: {error}".replace("\n", " "), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
