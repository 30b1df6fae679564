"""A program of RABIT's own Python module: worker.py FOLDER [RANK VERSION CALL]. The folder has the module and its library.

It kills itself at these coordinates when it has been started for the first time. It prints its process at its start, and at its end
the model's bytes and how often it prepared an input.
"""

import hashlib
import os
import signal
import sys

sys.path.insert(0, sys.argv[1])

import numpy as np
import rabit

VERSIONS, CALLS, LENGTH = 4, 3, 1000
RANK, VERSION, CALL = [int(word) for word in sys.argv[2:]] or [-1, 0, 0]
prepared = 0


def come_to(version, call):
    """Ends this process if it is the one that is to be lost here."""
    if (rabit.get_rank(), version, call) == (RANK, VERSION, CALL) and os.environ.get("DMLC_NUM_ATTEMPT") == "0":
        os.kill(os.getpid(), signal.SIGKILL)


def iteration(version, model, local):
    """One version: the model that all ranks have next, and this rank's own."""
    for call in range(CALLS):
        come_to(version, call)
        given = np.empty(LENGTH)

        def prepare(out):
            global prepared
            prepared += 1
            out[:] = model / (call + 3) + local + rabit.get_rank() * 0.1

        model = rabit.allreduce(given, rabit.SUM, prepare)
    scale = rabit.broadcast(
        {"scale": version + 0.5} if rabit.get_rank() == version % rabit.get_world_size() else None,
        version % rabit.get_world_size(),
    )
    largest = rabit.allreduce(model.astype(np.float32), rabit.MAX)
    return model / rabit.get_world_size() * scale["scale"] + largest * 1e-3, local + version


def main():
    print(f"start {os.getpid()}", flush=True)
    rabit.init()
    first = rabit.broadcast("the first call" if rabit.get_rank() == 0 else None, 0)
    assert first == "the first call"
    version, model, local = rabit.load_checkpoint(with_local=True)
    assert version == rabit.version_number()
    if version == 0:
        model, local = np.arange(LENGTH) / 7.0, np.full(LENGTH, float(rabit.get_rank()))
    for now in range(version, VERSIONS):
        model, local = iteration(now, model, local)
        come_to(now, CALLS)
        rabit.checkpoint(model, local)
    assert rabit.version_number() == VERSIONS and rabit.get_processor_name()
    print(f"end {os.getpid()} {prepared} {hashlib.sha256(model.tobytes() + local.tobytes()).hexdigest()}", flush=True)
    rabit.finalize()


main()
