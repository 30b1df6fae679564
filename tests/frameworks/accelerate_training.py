"""Accelerate: `accelerate_training.py WAY FOLDER` is one rank of a short training, with metrics and a checkpoint."""

import sys

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch.nn.functional import cross_entropy

import outcome

FEATURES, LABELS = 16, 5


def main():
    way, folder = sys.argv[1:]
    if way == "before":
        dist.init_process_group("herringbone")
    accelerator = Accelerator(cpu=True)
    model = outcome.network(FEATURES, LABELS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = torch.utils.data.DataLoader(outcome.rows(FEATURES, LABELS), outcome.BATCH)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    losses = []
    for inputs, wanted in loader:
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), wanted)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        everyones = accelerator.gather_for_metrics(loss.detach().reshape(1))
        assert everyones.shape == (2,) and everyones[accelerator.process_index] == loss, everyones
        assert accelerator.reduce(loss.detach(), "mean") == everyones.mean()

    accelerator.save_state(folder + "/state")
    with torch.no_grad():
        kept = [parameter.clone() for parameter in model.parameters()]
        for parameter in model.parameters():
            parameter.zero_()
    accelerator.wait_for_everyone()
    accelerator.load_state(folder + "/state")
    assert all(map(torch.equal, kept, model.parameters())), "the checkpoint differs"
    outcome.leave(folder, way, losses, model)


if __name__ == "__main__":
    main()
