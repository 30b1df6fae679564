"""Trains a small network to read digits, written like a program for Horovod.

    herringbone horovodrun -np 2 python examples/horovod_digits.py
    HERRINGBONE_REPLACE=horovod herringbone horovodrun -np 2 python examples/horovod_digits.py

Only the import differs from a program for Horovod; with the variable not even that. The program draws the digits itself,
so that nothing is downloaded. It ends with an error if fewer than 90 % of new digits are read correctly.
"""

import argparse
import os

import torch
from torch import nn
from torch.nn import functional

if os.environ.get("HERRINGBONE_REPLACE") == "horovod":
    import horovod.torch as hvd
else:
    import herringbone.horovod.torch as hvd

FONT = """
.###. ..#.. .###. ####. #..#. ##### .###. ##### .###. .###.
#...# .##.. #...# ....# #..#. #.... #.... ....# #...# #...#
#..## ..#.. ....# ..##. ##### ####. ####. ...#. .###. .####
##..# ..#.. ..##. ....# ...#. ....# #...# ..#.. #...# ....#
.###. .###. ##### ####. ...#. ####. .###. .#... .###. .###.
"""
"""The digits 0 to 9, of five rows each."""


def drawn(count, seed):
    """Digits at different places of 9 x 9 pixels, with noise, and which ones they are."""
    generator = torch.Generator().manual_seed(seed)
    rows = [line.split() for line in FONT.split("\n") if line]
    shapes = [[[float(pixel == "#") for pixel in row[digit]] for row in rows] for digit in range(10)]
    digits = torch.randint(0, 10, (count,), generator=generator)
    places = torch.randint(0, 5, (count, 2), generator=generator)
    images = 0.35 * torch.randn(count, 9, 9, generator=generator)
    for image, digit, (top, left) in zip(images, digits.tolist(), places.tolist()):
        image[top : top + 5, left : left + 5] += torch.tensor(shapes[digit])
    return images.unsqueeze(1), digits


def network():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(5),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=8, help="default: %(default)s")
    parser.add_argument("--batch", type=int, default=50, help="digits of a rank in a step; default: %(default)s")
    options = parser.parse_args()

    hvd.init()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    images, digits = drawn(4000, seed=2)
    data = torch.utils.data.TensorDataset(images, digits)
    sampler = torch.utils.data.distributed.DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank())
    batches = torch.utils.data.DataLoader(data, batch_size=options.batch, sampler=sampler)

    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        total = 0.0
        for some, answers in batches:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(some), answers)
            loss.backward()
            optimizer.step()
            total += loss.item()
        mean = hvd.allreduce(torch.tensor(total / len(batches)), name="loss")
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: loss {mean:.3f}")

    # Each rank reads other digits, and the fractions that are right are averaged.
    images, digits = drawn(500, seed=100 + hvd.rank())
    with torch.no_grad():
        right = (model(images).argmax(1) == digits).float().mean()
    right = hvd.allreduce(right, name="right")
    if hvd.rank() == 0:
        print(f"{100 * right:.1f} % of new digits are read correctly, by {hvd.size()} ranks")
    if right < 0.9:
        raise SystemExit("fewer than 90 % are read correctly")


if __name__ == "__main__":
    main()
