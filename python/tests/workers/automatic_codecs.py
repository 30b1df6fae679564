"""All-reduces that leave their codec to the plan, beside those that name one; rank 0 prints what it saw."""

from __future__ import annotations

import json

import numpy as np

import herringbone


def bits(comm: herringbone.Communicator, values: np.ndarray, codec: str | None, op: str = "average") -> bytes:
    """What a call makes of a copy of the values."""
    own = values.copy()
    comm.all_reduce(own, op, compression=codec)
    return own.tobytes()


def taken(comm: herringbone.Communicator, values: np.ndarray) -> list[str]:
    """The codecs whose results ``auto`` has the bits of."""
    automatic = bits(comm, values, "auto")
    return [codec for codec in ("none", "bf16", "int8") if bits(comm, values, codec) == automatic]


with herringbone.init() as comm:
    numbers = np.random.default_rng(comm.rank)
    large, small = (numbers.standard_normal(count).astype("float32") for count in (1_000_003, 8))
    said = {
        "large": taken(comm, large),
        "small": taken(comm, small),
        "explained": comm.explain(large.size, compression="auto"),
        "named": comm.explain(large.size, compression="bf16"),
    }
    whole = np.arange(1_000_000) + comm.rank
    said["integers"] = bits(comm, whole, "auto", "sum") == bits(comm, whole, None, "sum")
    said["largest"] = bits(comm, large, "auto", "max") == bits(comm, large, None, "max")
    doubles = large.astype("float64")
    said["doubles"] = bits(comm, doubles, "auto") == bits(comm, doubles, None)
    comm.all_reduce(large, compression="auto", tensor="large")
    comm.all_reduce(small, compression="auto", tensor="small")
    said["fed back"] = sorted(comm.compression_state_dict())
    try:
        comm.explain(10, "int64", compression="int8")
    except NotImplementedError as error:
        said["refused"] = str(error)
    if comm.rank == 0:
        print(json.dumps(said))
