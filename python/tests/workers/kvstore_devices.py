"""A worker of a store of several workers, each with simulated devices; started by test_kvstore_devices.py with the store's type."""

from __future__ import annotations

import sys

import numpy as np
import torch
from tree_devices import Devices

from herringbone import kvstore
from herringbone.kvstore import streams

COUNT, SHAPE = 3, (7, 5)

kind = sys.argv[1]
is_async = kind == "dist_device_async"
kv = kvstore.create(kind)
devices = Devices(COUNT, kv.rank + 1)
streams.let_stand_in(devices)
for bound in (0, 10**6):
    kv._device_trees.bound = bound
    key = f"bound {bound}"
    tensors = [devices.tensor(at, torch.full(SHAPE, float(kv.rank))) for at in range(COUNT)]
    if is_async:
        kv.set_optimizer("test")
    kv.init(key, tensors[0])
    kv.pull(key, out=tensors)
    found = [devices.read(tensor) for tensor in tensors]
    devices.synchronize()
    assert all(torch.equal(each[0], torch.zeros(SHAPE)) for each in found), found
    kv.barrier()
    total = torch.zeros(SHAPE)
    for step in range(3):
        # Whole numbers, whose sum is the same in any order.
        drawn = [
            torch.from_numpy(np.random.default_rng([step, rank]).integers(-9, 9, (COUNT, *SHAPE)))
            for rank in range(kv.num_workers)
        ]
        for tensor, value in zip(tensors, drawn[kv.rank].float()):
            devices.write(tensor, value)
        if is_async:
            kv.push(key, tensors)
            kv.barrier()
            kv.pull(key, out=tensors)
        else:
            kv.pushpull(key, tensors, async_op=step == 1)
            for tensor in tensors:
                kv.wait(tensor)
        found = [devices.read(tensor) for tensor in tensors]
        for tensor in tensors:
            devices.write(tensor, torch.zeros(SHAPE))
        devices.synchronize()
        pushed = torch.stack(drawn).sum((0, 1)).float()
        total = total + pushed if is_async else pushed
        assert all(torch.equal(each[0], total) for each in found), (step, found, total)
        kv.barrier()
assert not devices.hazards, devices.hazards
print("over")
