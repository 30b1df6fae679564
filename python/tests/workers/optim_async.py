"""What each worker of a job does with AsyncSGD; started by test_optim_async.py."""

import os
import signal
import sys

import herringbone
import torch
from herringbone.optim import AsyncSGD

RANK, WORKERS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def network(seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(5, 70), torch.nn.Tanh(), torch.nn.Linear(70, 3))


def backward(model, step):
    """The gradients of this rank's part of a step; all ranks draw the same function to learn."""
    torch.manual_seed(step * WORKERS + RANK)
    inputs = torch.randn(8, 5)
    model.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs), inputs[:, :3].sin())
    loss.backward()
    return loss.item()


def sync():
    """With max_staleness=0 each step has the bits of an all-reduce of the gradients and SGD by their mean."""
    lr = 0.1
    with herringbone.init() as group, herringbone.ParameterServer() as servers:
        model, reference = network(RANK), network(0)
        optimizer = AsyncSGD(torch.optim.SGD(model.parameters(), lr=lr), servers, max_staleness=0)
        rate, share = torch.tensor(lr), torch.tensor(1 / WORKERS)
        for step in range(5):
            if step == 3:
                optimizer.param_groups[0]["lr"] = 0.05
                rate = torch.tensor(0.05)
            backward(model, step)
            backward(reference, step)
            optimizer.step()
            with torch.no_grad():
                for parameter in reference.parameters():
                    group.all_reduce(parameter.grad.numpy())
                    parameter.copy_(parameter - rate * (parameter.grad * share))
            for one, other in zip(model.parameters(), reference.parameters()):
                assert torch.equal(one, other), step
        assert optimizer.last_staleness is None
        group.barrier()


def killed():
    """A worker dies in the middle of a bounded training. The others go on, and train."""
    with herringbone.ParameterServer(timeout=60) as servers:
        model = network(RANK)
        optimizer = AsyncSGD(torch.optim.SGD(model.parameters(), lr=0.02), servers, max_staleness=2)
        losses = []
        for step in range(120):
            if RANK == 1 and step == 10:
                os.kill(os.getpid(), signal.SIGKILL)
            losses.append(backward(model, step))
            optimizer.step()
        assert sum(losses[-10:]) < 0.5 * sum(losses[:10]), losses


globals()[sys.argv[1]]()
