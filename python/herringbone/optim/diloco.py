"""DiLoCo: ranks train alone for many steps, and an outer optimizer follows the mean of their changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..arguments import whole
from ..errors import ArgumentError
from ..names import Codec
from .averaging import Averaging, OnChange
from .diloco_outer import Outer, TorchOuter, own_outer
from .exchange import BUCKET_BYTES, Wire
from .flat import Array, FlatParameters, parameters_of
from .outer import difference
from .rounds import Rounds, cut
from .saved import list_of

__all__ = ["DiLoCo"]


class DiLoCo(Averaging):
    """Many inner steps on each rank, then one step of an outer optimizer on the mean difference (Douillard et al., 2023)::

        with herringbone.optim.DiLoCo(model, optimizer, sync_every=100, wire="int8") as diloco:
            while diloco.rounds < 50:
                optimizer.zero_grad()
                inputs, targets = next(batches)
                criterion(model(inputs), targets).backward()
                optimizer.step()

    The training loop stays as it is. All ranks begin a round with common parameters. After its inner steps each rank sends the
    resulting change, the pseudo-gradient. The mean over all ranks is the gradient for one step of the outer optimizer, which
    makes the next common parameters. The arguments have the same names as in torchft's ``DiLoCo``, which takes a ``Manager``
    instead of a group.

    With several **fragments** each round exchanges one of them, in turns. With a ``fragment_sync_delay`` the exchange runs
    while the next inner steps compute (streaming DiLoCo, Douillard et al., 2025). The number of the round determines the
    fragment, so all ranks issue exchanges in the same order. Ranks can make different numbers of inner steps in a round: each
    passes its own ``sync_every``, or calls :meth:`sync`.

    **Memory**: two more copies of the parameters on the CPU, the common parameters and the outer momentum, in float32 or
    float64. A running exchange needs two more copies of its fragment.

    **A lost rank**: the pseudo-gradient of a round is kept until its mean is complete, so no rank applies half of an exchange.
    With ``elastic=True`` the remaining ranks repeat the exchange among themselves. Without it, the exchange fails with a
    ``PeerLostError``, and :meth:`regroup` repeats it over another group. A new process starts with the rank, the size and the
    meeting address of the lost one (:class:`herringbone.Elastic`) and joins between two rounds. It gets the common parameters,
    the outer momentum and the number of the round. It begins with another rank's buffers and state of the inner optimizer.
    """

    _call = "DiLoCo"

    def __init__(
        self,
        model: Any,
        inner_optimizer: torch.optim.Optimizer,
        outer_optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
        *,
        sync_every: int,
        fragments: int = 1,
        fragment_sync_delay: int = 0,
        fragment_update_alpha: float = 0.0,
        outer_lr: float = 0.7,
        outer_momentum: float = 0.9,
        nesterov: bool = True,
        should_quantize: bool = False,
        wire: Codec | None = None,
        feedback: bool = True,
        bucket_bytes: int = BUCKET_BYTES,
        group: Any = None,
        elastic: bool = False,
        least: int = 1,
        wait: float = 0.0,
        on_change: OnChange | None = None,
    ) -> None:
        """Join the other ranks; all of them call this. They begin with the parameters of rank 0.

        Args:
            model: a module, or its parameters; or a list of modules, which are the fragments. Not a DistributedDataParallel.
            inner_optimizer: of torch, over the model's parameters.
            outer_optimizer: of torch, over the model's parameters, or one for each fragment; by default SGD on the CPU with the
                three arguments below.
            sync_every: inner steps in which each fragment is exchanged once: a multiple of the number of fragments.
            fragments: the number of fragments, of about equal size, into which one model's parameters are cut.
            fragment_sync_delay: how many inner steps before the end of its round the exchange of a fragment starts.
            fragment_update_alpha: the share of the rank's own parameters in the mix with which it continues, from 0 to 1.
            outer_lr, outer_momentum, nesterov: settings of the default outer optimizer.
            should_quantize: the same as ``wire="int8"``.
            wire: a codec for pseudo-gradients of at most 32 bits, such as ``"bf16"`` and ``"int8"``, as in
                :meth:`herringbone.Communicator.all_reduce`.
            feedback: whether to use error feedback with the codec.
            bucket_bytes: the most bytes of one all-reduce.
            group: a torch group of Herringbone's, or a communicator; by default torch's group, else :func:`herringbone.init`'s.
            elastic: if a rank is lost in an exchange, the others repeat it, and new processes join between rounds; the ranks
                form a :class:`herringbone.Elastic`.
            least, wait, on_change: for elastic members, as in :class:`herringbone.Elastic`.

        Raises:
            TypeError, ValueError: an argument makes no sense.
            ConfigError: the process group has another backend.
            ArgumentError: another rank has another class, wire, ``bucket_bytes``, outer optimizer, fragments or shapes of
                parameters.
            HerringboneError: the ranks did not come together.
        """
        parts = _fragments_of(self._call, model, fragments)
        rounds = Rounds.checked(self._call, sync_every, len(parts), fragment_sync_delay)
        if not 0 <= fragment_update_alpha <= 1:
            raise ValueError(f"{self._call}: fragment_update_alpha is {fragment_update_alpha}; pass a number from 0 to 1")
        if should_quantize and wire not in (None, "int8"):
            raise ValueError(f"{self._call}: should_quantize means wire='int8', but wire is {wire!r}; pass one of them")
        codec = "int8" if should_quantize else wire
        super().__init__(parts, inner_optimizer, rounds, Wire(self._call, codec, feedback, bucket_bytes))
        self._follow_buffers(model)
        self._alpha = float(fragment_update_alpha)
        self._globals = [flat.read() for flat in self._fragments]
        self._outer: Outer = (
            own_outer(len(parts), outer_lr, outer_momentum, nesterov)
            if outer_optimizer is None
            else TorchOuter(self._call, outer_optimizer, self._fragments)
        )
        self._join(group, elastic, least=least, wait=wait, on_change=on_change)

    def _own_settings(self) -> dict[str, str]:
        return self._outer.settings()

    def _own_state(self) -> dict[str, Any]:
        common = [FlatParameters.tensors(arrays) for arrays in self._globals]
        return {"common": common, "outer": self._outer.state_dict()}

    def _load_own_state(self, call: str, state: Mapping[str, Any]) -> None:
        given = list_of(call, state, "common")
        if len(given) != len(self._fragments):
            raise ArgumentError(
                f"{call}: the state has {len(given)} fragments, and the model {len(self._fragments)}; cut the model in the same way"
            )
        parts = [{"common": arrays} for arrays in given]
        common = [flat.arrays(call, part, "common") for flat, part in zip(self._fragments, parts)]
        self._outer.load_state_dict(state.get("outer"), common)
        self._globals = common

    def _common(self) -> list[list[Array]]:
        return self._globals

    def _load_common(self, common: list[list[Array]], is_new: bool) -> None:
        exchanged = self._rounds.fragment(self.rounds)
        for number, flat in enumerate(self._fragments):
            if is_new:
                flat.write(common[number])
            elif number == exchanged:
                flat.write(common[number], self._alpha)
        self._globals = common

    def _save_more(self) -> Any:
        return self._outer.state_dict()

    def _load_more(self, more: Any) -> None:
        self._outer.load_state_dict(more, self._globals)

    def _contribution(self, fragment: int) -> list[Array]:
        return difference(self._globals[fragment], self._fragments[fragment].read())

    def _apply(self, fragment: int, averages: list[Array]) -> None:
        self._outer.step(fragment, self._globals[fragment], averages)
        self._fragments[fragment].write(self._globals[fragment], self._alpha)


def _fragments_of(call: str, model: Any, fragments: Any) -> list[Any]:
    """The fragments: modules, or lists of parameters.

    Raises:
        TypeError: the model is neither a module, nor modules, nor parameters.
        ValueError: it cannot be cut into that many.
    """
    if isinstance(fragments, (list, tuple)):
        what = "pass a list of modules in place of model, and leave fragments out; or pass a number"
        raise TypeError(f"{call}: fragments is a {type(fragments).__name__}; {what}")
    fragments = whole(call, "fragments", fragments, "a number of fragments")
    if isinstance(model, (list, tuple)) and all(isinstance(part, torch.nn.Module) for part in model):
        if fragments not in (1, len(model)):
            raise ValueError(f"{call}: fragments is {fragments}, and model has {len(model)} modules, which are the fragments")
        if not model:
            raise ValueError(f"{call}: model is an empty list; pass a module, or several")
        return list(model)
    parameters = parameters_of(call, model)
    try:
        parts = cut([parameter.numel() for parameter in parameters], fragments)
    except ValueError as error:
        raise ValueError(f"{call}: {error}") from None
    return [[parameters[at] for at in part] for part in parts]
