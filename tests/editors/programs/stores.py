"""Programs of MXNet's KVStore and of RABIT."""

from __future__ import annotations

from typing import Any

import numpy as np
from typing_extensions import assert_type

from herringbone import kvstore, rabit

kv = kvstore.create("dist_sync")
assert_type(kv, kvstore.KVStore)
kv.init("weight", np.ones((2, 3)))
kv.push("weight", np.ones((2, 3)))
weight = np.empty((2, 3))
kv.pull("weight", out=weight, async_op=True)
kv.wait_all()
kv.set_optimizer(kvstore.create_optimizer("sgd", learning_rate=0.1))
assert_type(kv.rank, int)
assert_type(kv.num_workers, int)

rabit.init()
assert_type(rabit.get_rank(), int)
assert_type(rabit.allreduce(np.ones(3), rabit.SUM), np.ndarray[Any, np.dtype[Any]])
version, model = rabit.load_checkpoint()
rabit.checkpoint(model)
rabit.finalize()
