"""One host of the measurement of codecs over limited links: times all-reduces, and counts bytes on the interface."""

import argparse
import json
import pathlib
import time

import numpy as np

import herringbone
from herringbone import _herringbone

CODECS = [None, *_herringbone.codecs()]


def counted():
    """The bytes that the interface has received and sent."""
    for row in pathlib.Path("/proc/net/dev").read_text().splitlines():
        name, _, numbers = row.partition(":")
        if name.strip() == "eth0":
            cells = numbers.split()
            return int(cells[0]), int(cells[8])
    raise SystemExit("there is no eth0 here")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    with herringbone.init(timeout=300) as comm:
        gradient = np.random.default_rng(comm.rank).standard_normal(arguments.bytes // 4).astype(np.float32) * np.float32(0.4)
        rows = []
        for _ in range(arguments.rounds):
            for codec in CODECS:
                array = gradient.copy()
                comm.barrier()
                before, start = counted(), time.perf_counter()
                comm.all_reduce(array, "average", compression=codec, tensor=codec)
                seconds = time.perf_counter() - start
                comm.barrier()
                received, sent = (after - then for after, then in zip(counted(), before))
                rows.append({"codec": codec or "none", "seconds": seconds, "received": received, "sent": sent})
        (arguments.out / f"{comm.rank}.json").write_text(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
