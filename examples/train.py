"""Trains a small transformer on the sources of Python's standard library, with DDP or FSDP2, on CPUs.

    herringbone launch -n 2 -- python examples/train.py --parallel fsdp2 --checkpoint saved --resume
    torchrun --nproc-per-node 2 examples/train.py

The backend's name is the only part of it that concerns Herringbone. With --resume it continues from the newest
checkpoint as if it had never stopped: same losses, same parameters, bit for bit.
"""

import argparse
import json
import os
import pathlib
import re
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoints
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from model import Text, Transformer

WARM_UP_STEPS = 20
"""The learning rate rises over this number of steps, then stays, so it does not depend on the training's length."""
SHAPE = ("width", "blocks", "heads", "context", "batch", "seed", "learning_rate")
COMPLETE = ".metadata"
"""The file of a checkpoint that torch writes last."""


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parallel", choices=["ddp", "fsdp2"], default="ddp", help="default: %(default)s")
    backends = ["herringbone", "gloo"]
    parser.add_argument("--backend", choices=backends, default=backends[0], help="default: %(default)s")
    parser.add_argument("--steps", type=positive, default=200, help="the last step of the training; default: %(default)s")
    parser.add_argument("--batch", type=positive, default=8, help="texts of a rank in a step; default: %(default)s")
    parser.add_argument("--context", type=positive, default=128, help="bytes of a text; default: %(default)s")
    parser.add_argument("--width", type=positive, default=128, help="default: %(default)s")
    parser.add_argument("--blocks", type=positive, default=4, help="default: %(default)s")
    parser.add_argument("--heads", type=positive, default=4, help="heads of each block; default: %(default)s")
    parser.add_argument("--learning-rate", type=rate, default=2e-3, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=7, help="default: %(default)s")
    parser.add_argument("--report-every", type=positive, default=10, metavar="STEPS", help="default: %(default)s")
    parser.add_argument("--checkpoint", type=pathlib.Path, metavar="FOLDER", help="folder for checkpoints, which all ranks see")
    parser.add_argument("--save-every", type=positive, metavar="STEPS", help="default: only at the end")
    parser.add_argument("--resume", action="store_true", help="continue from the newest checkpoint of the folder, if it has one")
    parser.add_argument("--json", action="store_true", help="print figures, one JSON object per line")
    options = parser.parse_args()
    if options.width % options.heads:
        parser.error(f"--width {options.width} cannot be divided by --heads {options.heads}: choose a multiple")
    if not options.checkpoint and (options.resume or options.save_every):
        parser.error(f"--{'resume' if options.resume else 'save-every'} needs --checkpoint FOLDER")
    if "RANK" not in os.environ:
        parser.error("this is not a job of several ranks: herringbone launch -n 2 -- python examples/train.py")
    return options


def positive(text):
    """A whole number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 1")
    return int(text)


def rate(text):
    """A number above 0."""
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return number


class Training:
    """A model that all ranks train together, its optimizer, and how many steps it has made."""

    def __init__(self, options):
        self.options, self.step = options, 0
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(options.seed)
        self.text = Text(options.context, options.seed)
        self.model = parallel(Transformer(options.width, options.blocks, options.heads, options.context), options.parallel)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=options.learning_rate)

    def make_step(self):
        """One step; returns this rank's loss."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.options.learning_rate * min(1, (self.step + 1) / WARM_UP_STEPS)
        self.optimizer.zero_grad()
        loss = self.loss(self.text.batch(self.step, self.options.batch, self.rank, self.world))
        loss.backward()
        self.optimizer.step()
        self.step += 1
        return loss.detach()

    def loss(self, batch):
        values, wanted = batch
        return nn.functional.cross_entropy(self.model(values).flatten(0, 1), wanted.flatten())

    def held_out_loss(self):
        """The mean loss of all ranks on text that the model has never seen."""
        with torch.no_grad():
            return mean(self.loss(self.text.held_out(self.options.batch, self.rank, self.world)))

    def shape(self):
        """The settings that a checkpoint belongs to: with another value the training would not be the same."""
        chosen = {name: getattr(self.options, name) for name in SHAPE}
        return chosen | {"ranks": self.world, "text": self.text.digest}

    def save(self):
        """Saves a checkpoint, to which every rank writes its part."""
        folder = self.options.checkpoint / f"step-{self.step}"
        model, optimizer = get_state_dict(self.model, self.optimizer)
        state = {"model": model, "optimizer": optimizer, "step": self.step, "shape": self.shape()}
        checkpoints.save(state, checkpoint_id=folder)
        return folder

    def resume(self):
        """Continues from the newest checkpoint; returns its folder, or None if there is none yet."""
        newest = [newest_checkpoint(self.options.checkpoint) if self.rank == 0 else None]
        dist.broadcast_object_list(newest)
        if newest[0] is None:
            return None
        saved = {"shape": self.shape()}
        checkpoints.load(saved, checkpoint_id=newest[0])
        differing = [f"{name} {was}" for name, was in saved["shape"].items() if self.shape()[name] != was]
        if differing:
            raise SystemExit(f"{newest[0]} was trained with {', '.join(differing)}: use the same, or another folder")
        model, optimizer = get_state_dict(self.model, self.optimizer)
        state = {"model": model, "optimizer": optimizer, "step": 0}
        checkpoints.load(state, checkpoint_id=newest[0])
        set_state_dict(self.model, self.optimizer, model_state_dict=model, optim_state_dict=optimizer)
        self.step = state["step"]
        return newest[0]


def parallel(model, way):
    """DDP: every rank has all parameters. FSDP2: every rank has a part of each, and gathers a block when it needs it."""
    if way == "ddp":
        return DistributedDataParallel(model)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def newest_checkpoint(folder):
    """The complete checkpoint with the most steps."""
    found = [path for path in folder.glob("step-*") if re.fullmatch(r"step-\d+", path.name)]
    complete = [path for path in found if (path / COMPLETE).exists()]
    return max(complete, key=lambda path: int(path.name.removeprefix("step-")), default=None)


def mean(loss):
    """The mean over all ranks."""
    total = loss.clone()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


class Report:
    """Rank 0's output: a line for people, or an object for programs."""

    def __init__(self, options):
        self.options, self.visible = options, dist.get_rank() == 0
        self.tokens_a_step = options.batch * options.context * dist.get_world_size()

    def say(self, words, **figures):
        if self.visible:
            print(json.dumps(figures) if self.options.json else words, flush=True)

    def step(self, step, loss, steps, seconds):
        """The mean loss of a step, and the speed of the last `steps`."""
        speed, left = steps * self.tokens_a_step / seconds, (self.options.steps - step) * seconds / steps
        self.say(
            f"step {step:>{len(str(self.options.steps))}} of {self.options.steps}   loss {loss:.4f}   "
            f"{speed:,.0f} tokens/s   {left:.0f} s left",
            step=step,
            loss=loss,
            tokens_per_s=round(speed, 1),
        )


def train(options):
    training, report = Training(options), Report(options)
    parameters = sum(parameter.numel() for parameter in training.model.parameters())
    report.say(
        f"{parameters:,} parameters, {len(training.text.bytes):,} bytes of text; {training.world} ranks, "
        f"{options.parallel} over {dist.get_backend()}",
        parameters=parameters,
        bytes=len(training.text.bytes),
        ranks=training.world,
        parallel=options.parallel,
        backend=dist.get_backend(),
    )
    if options.resume:
        folder = training.resume()
        begins = f"{options.checkpoint} has no checkpoint yet: the training begins"
        said = f"the training continues from {folder}" if folder else begins
        report.say(said, resumed=str(folder) if folder else None, step=training.step)
    since, began = training.step, time.monotonic()
    while training.step < options.steps:
        loss = training.make_step()
        last = training.step == options.steps
        if last or training.step % options.report_every == 0:
            loss = mean(loss)
            report.step(training.step, loss, training.step - since, time.monotonic() - began)
            since, began = training.step, time.monotonic()
        if options.checkpoint and (last or (options.save_every and training.step % options.save_every == 0)):
            folder = training.save()
            report.say(f"saved {folder}", saved=str(folder), step=training.step)
    held_out = training.held_out_loss()
    report.say(f"loss on the text that is held out: {held_out:.4f}", held_out=held_out, step=training.step)


def main():
    options = arguments()
    torch.use_deterministic_algorithms(True)
    dist.init_process_group(options.backend)
    try:
        train(options)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
