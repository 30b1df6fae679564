"""The cases of another worker, written for tensors of the CPU, on an accelerator of the tests.

Usage: staged_corpus.py SCRIPT [cuda|values]: over CUDA's interface, or on streams that wait for values in the host's memory. These
cases read a tensor as soon as a work has been waited for. So a wait lasts here until the result is in the tensor: a program that
synchronises with its accelerator after each wait. Everything else is as in ``staged.py``: the calls, the copies, their streams and the
order of starts.
"""

from __future__ import annotations

import functools
import importlib
import sys
from datetime import timedelta

import cases
import torch.distributed as dist
from simulated import CudaStandIn, StandIn, synchronized_waits

ELSEWHERE = {
    "collectives.py": {
        "a_forked_child_does_not_wait": "a process that has used CUDA cannot be forked",
        "an_urgent_operation_overtakes": "the native handle has another interface",
        "ranks_that_disagree_get_an_error_and_go_on": "a barrier has no tensors, so it does not meet a staged call",
        "two_ranks_that_both_believe_to_be_the_root": "the same",
        "what_is_not_there_names_the_alternative": "staged_calls.py has the texts: the engine does not see these calls",
    },
    "endings.py": {
        "groups_that_are_aborted_during_an_operation": "an abort waits a second at most for a call that begins at that moment",
        "the_end_of_a_group_does_not_wait_for_a_rank_that_is_late": "a group's first call waits for all ranks",
    },
    "exchanges.py": {
        "a_split_that_the_other_rank_does_not_expect": "a barrier has no tensors, so it does not tell of an earlier staged call",
        "memory_that_lacks_fails_the_call_on_all_ranks": "the host's memory is limited there",
    },
}
"""The cases that say something else about an accelerator's tensors, and why."""


def cases_on_devices(script: str) -> dict[str, cases.Case]:
    """The cases of a script that hold here, too."""
    every: dict[str, cases.Case] = importlib.import_module(script.removesuffix(".py")).CASES
    assert set(ELSEWHERE.get(script, {})) <= set(every), "a case is called something else now"
    return {name: case for name, case in every.items() if name not in ELSEWHERE.get(script, {})}


if __name__ == "__main__":
    script = sys.argv[1]
    chosen = cases_on_devices(script)
    dist.init_process_group("herringbone", timeout=timedelta(seconds=60))
    if script == "training.py":
        vars(importlib.import_module("training"))["gloo"] = dist.new_group(backend="gloo")
    simulated = functools.partial(StandIn, dist.get_rank() + 11, waits_for_values="values" in sys.argv)
    accelerator = CudaStandIn() if "cuda" in sys.argv else simulated()
    with synchronized_waits():
        cases.run(chosen, dist.get_rank())
    assert accelerator.hazards() == []
    accelerator.end()
    dist.destroy_process_group()
