"""Ray Train starts three workers, whose process group is Herringbone's; `make launchers ARGS="--ray PYTHON"` calls it."""

import ray
import torch
import torch.distributed as dist
from ray.train import ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

RANKS = 3


def work():
    """Adds in the group that Ray Train has made."""
    numbers = torch.full((1000,), dist.get_rank() + 1.0)
    dist.all_reduce(numbers)
    kind = type(dist.group.WORLD).__name__
    assert (kind, numbers.unique().tolist()) == ("ProcessGroupHerringbone", [RANKS * (RANKS + 1) / 2]), (kind, numbers)


if __name__ == "__main__":
    ray.init(num_cpus=RANKS, include_dashboard=False)
    trainer = TorchTrainer(
        work,
        torch_config=TorchConfig(backend="herringbone", timeout_s=60),
        scaling_config=ScalingConfig(num_workers=RANKS, resources_per_worker={"CPU": 1}),
    )
    # It raises what a worker raised.
    trainer.fit()
    print(f"sums of {RANKS} ranks are right")
