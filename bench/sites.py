"""All-reduces between two sites of hosts with a slow link between them: plans that know the sites, one that knows nothing, ring and Gloo.

Hosts are network namespaces. The jobs take turns in the same processes. Prints a table for a record.
"""

import argparse
import json
import pathlib
import tempfile

from lab_turns import table, turns
from machine import commit, machine
from processes import Namespaces, NoNamespaces, Processes, signals_held

from lab.hosts import Uplinks

JOBS = [
    ("sites", None, True, "ranks"),
    ("sites, added first", None, True, "sites"),
    ("default", None, False, "ranks"),
    ("ring", "ring", False, "ranks"),
    ("Gloo", "gloo", False, "ranks"),
]
"""Names, what is forced, whether the job knows the sites, and the fold order."""


def topology(options):
    """What a file says of the sites: the rates are of payload."""
    hosts = range(options.hosts)
    nodes = [{"name": str(host), "kind": "rank"} for host in hosts]
    port, uplink = options.fast / 8000, options.slow / 8000
    ports = [{"host": host, "out": port, "into": port} for host in hosts]
    half = options.hosts // 2
    sites = [
        {"name": name, "hosts": list(of_site), "out": uplink, "into": uplink}
        for name, of_site in (("north", hosts[:half]), ("south", hosts[half:]))
    ]
    return {"nodes": nodes, "ports": ports, "sites": sites}


def arguments():
    """The command line."""
    numbers = lambda text: [int(part) for part in text.split(",")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    option = parser.add_argument
    option("--hosts", type=int, default=6, help="hosts of one rank, half of them in each site")
    option("--fast", type=float, default=500, help="Mbit/s of a port")
    option("--slow", type=float, default=50, help="Mbit/s of each site's uplink")
    option("--sizes", type=numbers, default="1048576,8388608", metavar="LIST", help="bytes of the buffer")
    option("--rounds", type=int, default=7, help="turns of each job")
    option("--measure", action="store_true", help="the first two jobs measure, instead of knowing the sites from a file")
    return parser.parse_args()


def main():
    options = arguments()
    half = options.hosts // 2
    uplinks = Uplinks([int(host >= half) for host in range(options.hosts)], options.slow)
    if options.measure:
        del JOBS[1]
    try:
        with (
            signals_held(),
            Namespaces(options.hosts, options.fast, uplinks=uplinks) as spaces,
            Processes(spaces) as processes,
            tempfile.TemporaryDirectory() as folder,
        ):
            file = pathlib.Path(folder, "sites.json")
            file.write_text(json.dumps(topology(options)))
            lines = turns(spaces, processes, options, JOBS, "measure" if options.measure else str(file))
    except NoNamespaces as reason:
        raise SystemExit(f"hosts are network namespaces: {reason}") from None
    facts = machine()
    print(f"* CPU: {facts['CPU']}, {facts['cores']} cores, {facts['kernel']}; commit {commit()}")
    print(
        f"* two sites of {half} hosts of {options.fast:g} Mbit/s with uplinks of {options.slow:g}; {options.rounds} turns of each\n"
    )
    print(table(lines, options, JOBS, "the uplink"))
    for line in lines:
        if "plan" in line and line["plan"] not in ("ring", "Gloo"):
            print(f"* {line['bytes']} B, {line['plan']}: {line['why']}")


if __name__ == "__main__":
    main()
