"""Ranks whose linear layers send factors; started by test_optim_factors.py."""

import copy
import io
import os
import warnings

import torch
import torch.distributed as dist
from cases import error_of
from herringbone import ArgumentError, UnsupportedError
from herringbone.optim import factor_broadcast
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

RANK, WORKERS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.set_num_threads(1)


class Network(torch.nn.Module):
    """A wide and a narrow layer, one that is used twice, and one that shares its weight with an embedding."""

    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(20, 16)
        self.wide, self.narrow = torch.nn.Linear(16, 300), torch.nn.Linear(300, 16, bias=False)
        self.twice, self.norm = torch.nn.Linear(16, 16), torch.nn.LayerNorm(16)
        self.out = torch.nn.Linear(16, 20, bias=False)
        self.out.weight = self.words.weight

    def forward(self, words):
        x = self.words(words)
        x = self.norm(x + self.narrow(torch.tanh(self.wide(x))))
        return self.out(self.twice(torch.relu(self.twice(x))))


def backward(model, step, dtype):
    drawing = torch.Generator().manual_seed(step * WORKERS + RANK)
    # Ranks have batches of several sizes.
    words = torch.randint(20, (1 + (RANK + step) % 2, 4), generator=drawing)
    weights = torch.randn((*words.shape, 20), generator=drawing, dtype=dtype)
    (model(words) * weights).sum().backward()


def equals(dtype, rows, tolerance):
    torch.manual_seed(RANK)
    model = Network().to(dtype)
    reference = copy.deepcopy(model)
    factors = factor_broadcast(model, rows=rows)
    wrapped, plain = DistributedDataParallel(model), DistributedDataParallel(reference)
    for step in range(3):
        backward(wrapped, step, dtype)
        backward(plain, step, dtype)
        if step == 1:
            continue  # gradients of two passes add up
        for (name, one), other in zip(model.named_parameters(), reference.parameters()):
            assert torch.equal(one, other), f"{name} begins as on rank 0, or differs after a step"
            scale = other.grad.abs().max()
            assert (one.grad - other.grad).abs().max() <= tolerance * scale, (name, dtype, rows)
        for network in (model, reference):
            for parameter in network.parameters():
                parameter.grad = None
    return factors, model


def layers():
    """A model whose first layer sends factors, and its copy without."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2))
    reference = copy.deepcopy(model)
    return model, reference, factor_broadcast(model, rows=1)


def gradients_of_inputs_need_no_other_rank():
    model, reference, _ = layers()
    if RANK == 0:
        x = torch.randn(2, 3, requires_grad=True)
        [ours], [theirs] = (torch.autograd.grad(each(x).pow(3).sum(), x) for each in (model, reference))
        assert torch.allclose(ours, theirs) and all(parameter.grad is None for parameter in model.parameters())
        model(x).pow(3).sum().backward(inputs=[x])
        assert all(parameter.grad is None for parameter in model.parameters())
        wrong = "torch.autograd.grad has no gradient of the parameters of 0"
        error_of(UnsupportedError, lambda: torch.autograd.grad(model(x).sum(), model[0].weight), wrong)
        [once] = torch.autograd.grad(model(x).pow(3).sum(), x, create_graph=True)
        error_of(UnsupportedError, once.pow(2).sum().backward, "sends factors", "cannot be differentiated again")


class Fails(torch.autograd.Function):
    """Whose backward pass fails."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("out of memory")


def a_backward_pass_that_failed_leaves_nothing():
    for is_wrapped in (True, False):
        model, reference, _ = layers()
        if not is_wrapped:
            model, reference = model[:1], reference[:1]
        theirs = DistributedDataParallel(reference)
        for _ in range(2):
            # The layers' part of the pass is made, what is before them fails.
            x = Fails.apply(torch.ones(1, 3, requires_grad=True))
            error_of(RuntimeError, model(x).sum().backward, "out of memory")
            for each in (model, theirs):
                each.zero_grad()
                each(torch.full((1, 3), 1.0 + RANK)).pow(3).sum().backward()
        torch.testing.assert_close(model[0].weight.grad, reference[0].weight.grad)


def passes_within_a_pass_have_their_own_factors():
    model, reference, _ = layers()
    theirs = DistributedDataParallel(reference)
    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(RANK), requires_grad=True)
    checkpoint(model, x, use_reentrant=True).pow(3).sum().backward()
    theirs(x).pow(3).sum().backward()
    torch.testing.assert_close(model[0].weight.grad, reference[0].weight.grad)


def gradients_from_elsewhere_are_refused():
    model, _, factors = layers()
    weight, bias = model[2].weight, model[2].bias
    wrong = "has a gradient from outside the layer"
    error_of(UnsupportedError, (model(torch.ones(1, 3)).sum() + weight.square().sum()).backward, f"the weight of 2 {wrong}")
    error_of(UnsupportedError, bias.sum().backward, f"the bias of 2 {wrong}", "pass weight_decay")
    model.zero_grad()
    model(torch.ones(1, 3)).sum().backward()
    assert weight.grad is not None, "the layer's own gradients come again"
    assert "from elsewhere in the loss is refused" in factors.explain()
    error_of(ArgumentError, lambda: factor_broadcast(model), "0 has a forward of its own already", "call remove()")
    for _ in range(2):
        factors.remove()
    weight.square().sum().backward()

    norm = torch.nn.LayerNorm(64)
    norm.bias = model[0].bias
    text = factor_broadcast(torch.nn.Sequential(model[0], norm)).explain()
    assert "0: 64 x 3, sends no factors: its bias is shared with another layer" in text, text


def copies_send_no_factors():
    model, reference, factors = layers()
    assert [*model.state_dict()] == [*reference.state_dict()]
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.save(model, file)
    file.seek(0)
    x = torch.full((1, 3), 1.0 + RANK)
    for each in (copy.deepcopy(model), copy.deepcopy(copy.deepcopy(model)), torch.load(file, weights_only=False)):
        assert not hasattr(each, "_ddp_params_and_buffers_to_ignore") or each._ddp_params_and_buffers_to_ignore == []
        for parameter in each.parameters():
            parameter.detach().mul_(2)
        assert not torch.equal(each(x), model(x)), "it computes with its own parameters"
        theirs = copy.deepcopy(reference)
        theirs.load_state_dict(each.state_dict())
        # This is of one rank alone.
        for network in (each, theirs) if RANK == 0 else ():
            network(x).sum().backward()
        assert RANK or torch.equal(each[0].weight.grad, theirs[0].weight.grad)
        wrapped, plain = DistributedDataParallel(each), DistributedDataParallel(theirs)
        for network in (wrapped, plain):
            network.zero_grad()
            network(x).sum().backward()
        assert torch.equal(each[0].weight.grad, theirs[0].weight.grad)
        factor_broadcast(each, rows=1).remove()
    error_of(UnsupportedError, lambda: copy.deepcopy(factors), "cannot be copied or saved. Copy the model")
    factors.remove()
    assert "forward" not in vars(model[0])


dist.init_process_group("herringbone")
copies_send_no_factors()
gradients_from_elsewhere_are_refused()
a_backward_pass_that_failed_leaves_nothing()
passes_within_a_pass_have_their_own_factors()
gradients_of_inputs_need_no_other_rank()
for dtype, tolerance in ((torch.float32, 1e-6), (torch.float64, 1e-14)):
    factors, model = equals(dtype, None, tolerance)
    text = factors.explain()
    assert "wide: 300 x 16, sends factors: 8 rows x (16 + 300) x 2 ranks = 5056 < 9600 = 2 x 16 x 300" in text, text
    assert "twice: 16 x 16, sends the gradient: 16 rows x (16 + 16) x 2 ranks = 1024 >= 512 = 2 x 16 x 16" in text, text
    assert "out: 20 x 16, sends no factors: its weight is shared with another layer" in text, text
    assert set(model._ddp_params_and_buffers_to_ignore) == {
        "wide.weight",
        "wide.bias",
        "narrow.weight",
        "twice.weight",
        "twice.bias",
    }
    factors, model = equals(dtype, 8, tolerance)
    assert "twice.weight" not in model._ddp_params_and_buffers_to_ignore, "it stays with DDP"
    factors.remove()
    model(torch.zeros((1, 2), dtype=torch.int64)).sum().backward()
print("equal", flush=True)
dist.destroy_process_group()
