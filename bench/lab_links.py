"""All-reduces over links like those of a p3.16xlarge: ring, star and radix, which are blind, beside trees that know the links.

Eight network namespaces have a cable of their own for each pair, as MXNet's proposal has it for GPUs: two NVLinks, one, or the way
through PCIe and processors. The algorithms take turns. Writes a table and a picture.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from lab_record import medians, picture_of, record_of
from machine import commit, machine
from mesh import Mesh
from ports import free_port
from processes import NoNamespaces, Processes, signals_held

ROOT = pathlib.Path(__file__).resolve().parents[1]
MATRICES = ROOT / "testdata" / "topologies" / "link_matrices.json"
RATES = {1.0: 40, 2.0: 100, 3.0: 200}
"""Mbit/s by the entries of p3.16xlarge's matrix: 10, 25 and 50 GB/s, scaled to what two cores can move."""
ALGORITHMS = [
    ("ring", "ring", False),
    ("star", "star", False),
    ("radix", "radix", False),
    ("trees(best,single)", "trees(best,single)", True),
    ("trees(best)", "trees(best)", True),
    ("trees(throughput)", "trees(throughput)", True),
    ("trees", "trees", True),
    ("plan, blind", None, False),
    ("plan", None, True),
]
"""Names, what is forced, and whether the job has the topology."""


def matrix(name):
    """A matrix of the tests' topologies."""
    return next(found["matrix"] for found in json.loads(MATRICES.read_text()) if found["name"] == name)


def topology():
    """Rates in Mbit/s, and what the jobs get: MXNet's weights, in which PCIe is no link for trees, and all bandwidths."""
    rates = [[RATES.get(entry, 0) for entry in row] for row in matrix("dgx1v_p3_16xlarge_raw")]
    weights = matrix("derived_dgx1v_weights_nvlink_only")
    return rates, {"matrix": weights, "bandwidth": [[rate / 8000 for rate in row] for row in rates]}


def measured(mesh, processes, environment):
    """By how much the measured bandwidths differ from the rates at most, in percent."""
    command = [sys.executable, "-m", "herringbone", "topo", "--measure", "--json"]
    place = {"MASTER_ADDR": mesh.address(0), "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(mesh.count)}
    ranks = [
        processes.start(command, rank, env=environment | place | {"RANK": str(rank)}, stdout=subprocess.PIPE)
        for rank in range(mesh.count)
    ]
    text = ranks[0].communicate(timeout=120)[0]
    processes.finish(ranks)
    links = json.loads(text)["links"]
    return max(abs(8000 * link["bandwidth"] / mesh.rates[link["from"]][link["to"]] - 1) for link in links) * 100


def turns(mesh, processes, environment, options, known):
    """The lines of rank 0."""
    with tempfile.TemporaryDirectory(prefix="herringbone-links-") as folder:
        file = pathlib.Path(folder, "links.json")
        file.write_text(json.dumps(known))
        setup = {
            "address": mesh.address(0),
            "algorithms": ALGORITHMS,
            "counts": options.counts,
            "most": options.most,
            "port": 29500,
            "ranks": mesh.count,
            "rounds": options.rounds,
            "single": options.single,
            "sizes": options.sizes,
            "token": environment["HERRINGBONE_TOKEN"],
            "topology": str(file),
        }
        command = [sys.executable, str(ROOT / "bench" / "lab_links_worker.py")]
        ranks = [
            processes.start(
                [*command, json.dumps(setup | {"rank": rank})],
                rank,
                env=environment,
                stdout=subprocess.PIPE if rank == 0 else None,
            )
            for rank in range(mesh.count)
        ]
        for text in ranks[0].stdout:
            line = json.loads(text)
            if "seconds" in line:
                message = f"{line['bytes']} B, {line['done']} of {line['count']} in a row: {1e3 * line['seconds']:.2f} ms each"
                print(f"{line['algorithm']}: {message}", file=sys.stderr)
            yield line
        processes.finish(ranks)


def arguments():
    """The command line."""
    numbers = lambda text: [int(part) for part in text.split(",")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    option = parser.add_argument
    option("--sizes", type=numbers, default="65536,1048576,8388608", metavar="LIST", help="bytes of the buffer")
    option("--counts", type=numbers, default="1,50,150", metavar="LIST", help="operations in a row")
    option("--most", type=float, default=4.0, help="seconds for a row; longer ones are cut")
    option("--single", type=int, default=5, help="turns of an operation that is alone")
    option("--rounds", type=int, default=2, help="turns of operations in a row")
    option(
        "--record",
        type=pathlib.Path,
        default=ROOT / "record" / "lab-links.md",
        help="the table; the picture is beside it",
    )
    return parser.parse_args()


def main():
    options = arguments()
    rates, known = topology()
    environment = os.environ | {"HERRINGBONE_TOKEN": "the lab of links", "HERRINGBONE_TREE_ARRAY_BOUND": "0"}
    environment |= {"HERRINGBONE_LOG": "off", "OMP_NUM_THREADS": "1"}
    environment.pop("HERRINGBONE_TOPOLOGY", None)
    try:
        with signals_held(), Mesh(rates) as mesh, Processes(mesh) as processes:
            off = measured(mesh, processes, environment)
            print(f"measured bandwidths differ from the rates by {off:.1f} % at most", file=sys.stderr)
            lines = list(turns(mesh, processes, environment, options, known))
    except NoNamespaces as reason:
        raise SystemExit(f"hosts are network namespaces: {reason}") from None
    found = {"machine": machine(), "commit": commit(), "rates": RATES, "off": off, "lines": lines}
    options.record.write_text(record_of(found))
    options.record.with_suffix(".svg").write_text(picture_of(medians(lines)[0]))


if __name__ == "__main__":
    main()
