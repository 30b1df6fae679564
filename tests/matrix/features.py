"""All features, in the order of the table. What they import of torch is imported here, once for all their jobs."""

import importlib

# In the order of the table.
import moving
import groups
import models

__all__ = ["groups", "models", "moving"]

for part in (
    "_dynamo",
    "distributed._functional_collectives",
    "distributed.checkpoint",
    "distributed.device_mesh",
    "distributed.fsdp",
    "distributed.nn.functional",
    "distributed.optim",
    "distributed.pipelining",
    "distributed.tensor.parallel",
    "profiler",
):
    importlib.import_module(f"torch.{part}")
