"""What each program of this folder is given and leaves: data for 2 ranks, and an outcome that run.py compares."""

import hashlib
import json
import pathlib

import torch
import torch.distributed as dist

STEPS = 6
BATCH = 4
KINDS = {"gloo": "ProcessGroupGloo"}
"""Of the backends of torch's group, by way; all other ways have OURS."""
OURS = "BackendHerringbone"


def rows(features, labels):
    """The data of all ranks: enough of them for STEPS steps of 2 ranks."""
    drawing = torch.Generator().manual_seed(5)
    count = 2 * STEPS * BATCH
    inputs = torch.randn(count, features, generator=drawing)
    return torch.utils.data.TensorDataset(inputs, torch.randint(labels, (count,), generator=drawing))


def network(features, labels):
    """Two layers, the same on every rank."""
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(features, 64), torch.nn.Tanh(), torch.nn.Linear(64, labels))


def leave(folder, way, losses, model):
    """Checks which backend the group has, and writes this rank's outcome to `folder`."""
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    wanted = KINDS.get(way, OURS)
    assert type(backend).__name__ == wanted, f"{way} should train over {wanted}, and trained over {type(backend)}"
    assert dist.get_world_size() == 2, f"{dist.get_world_size()} ranks"
    assert len(losses) == STEPS, f"{len(losses)} of {STEPS} steps: {losses}"
    folds = sum(backend.stats()["operations"]["all_reduce"].values()) if wanted == OURS else None
    assert folds is None or folds >= STEPS, f"only {folds} all-reduces in {STEPS} steps"
    parameters = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    outcome = {
        "backend": dist.get_backend(),
        "kind": type(backend).__name__,
        "all_reduces": folds,
        "losses": losses,
        "digest": hashlib.sha256(parameters.numpy().tobytes()).hexdigest(),
    }
    pathlib.Path(folder, f"rank{dist.get_rank()}.json").write_text(json.dumps(outcome))
    dist.barrier()
    dist.destroy_process_group()
