"""Starts a replica of a Vertex AI job: torchrun in worker pools 0 and 1, a reducer in pool 2.

Usage: start.py RANKS_PER_REPLICA PROGRAM [ARGUMENTS]. Vertex AI says in CLUSTER_SPEC which replica this is and where the
others are. Every replica needs the same HERRINGBONE_TOKEN. Standard library only.
"""

import json
import os
import sys

PRIMARY, WORKERS, REDUCERS = "workerpool0", "workerpool1", "workerpool2"


def command(spec, ranks, program):
    """What a replica runs, and the settings that it needs besides, for the CLUSTER_SPEC `spec`."""
    cluster, task = spec["cluster"], spec["task"]
    pool, index = task["type"], int(task["index"])
    if pool == REDUCERS:
        port = cluster[REDUCERS][index].rsplit(":", 1)[1]
        return ["herringbone", "serve", "--listen", f"0.0.0.0:{port}"], {}
    if pool not in (PRIMARY, WORKERS):
        sys.exit(f"start.py: {pool} has no part in the training; use worker pools 0, 1 and 2")
    first, port = cluster[PRIMARY][0].rsplit(":", 1)
    replicas = [*cluster[PRIMARY], *cluster.get(WORKERS, [])]
    number = index if pool == PRIMARY else len(cluster[PRIMARY]) + index
    torchrun = ["torchrun", f"--nnodes={len(replicas)}", f"--node-rank={number}", f"--nproc-per-node={ranks}"]
    torchrun += [f"--master-addr={first}", f"--master-port={port}", *program]
    reducers = ",".join(cluster.get(REDUCERS, []))
    return torchrun, {"HERRINGBONE_REDUCERS": reducers} if reducers else {}


def main():
    if "CLUSTER_SPEC" not in os.environ:
        sys.exit("start.py: CLUSTER_SPEC is not set: Vertex AI sets it in jobs of several worker pools")
    words, settings = command(json.loads(os.environ["CLUSTER_SPEC"]), sys.argv[1], sys.argv[2:])
    print("start.py:", *words, flush=True)
    os.execvpe(words[0], words, os.environ | settings)


if __name__ == "__main__":
    main()
