"""Training with the four calls of MXNet's KVStore: broadcast, pushpull, local_rank and num_local_workers.

Start it with `herringbone launch -n 2 -- python examples/kvstore_digits.py`.
"""

from __future__ import annotations

import torch

from herringbone import kvstore

kv = kvstore.create("dist_sync")
# With GPUs each local rank would use its own; here the ranks of a host share its cores.
torch.set_num_threads(max(1, torch.get_num_threads() // kv.num_local_workers))
torch.manual_seed(kv.rank)

model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
parameters = list(model.parameters())
for index, parameter in enumerate(parameters):
    kv.broadcast(index, parameter, out=parameter)

# The gradients have their own keys, because the stored weights are not needed again.
gradients = [len(parameters) + index for index in range(len(parameters))]
kv.init(gradients, [torch.zeros_like(parameter) for parameter in parameters])
optimizer = torch.optim.SGD(parameters, lr=0.05)
for step in range(60):
    data = torch.randn(64, 16)
    loss = torch.nn.functional.mse_loss(model(data), data.sum(dim=1, keepdim=True) / 4)
    optimizer.zero_grad()
    loss.backward()
    for index, parameter in enumerate(parameters):
        kv.pushpull(gradients[index], parameter.grad, priority=-index, async_op=True)
    kv.wait_all()
    for parameter in parameters:
        parameter.grad /= kv.num_workers
    optimizer.step()
    if step % 20 == 19 and kv.local_rank == 0:
        print(f"step {step + 1}: loss {loss.item():.4f}", flush=True)
