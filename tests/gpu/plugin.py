"""The plug-in for NCCL beside NCCL's own sockets: two processes on one GPU, which NCCL takes for two hosts."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path

from rows import Row, judged, ratio

__all__ = ["FOUND", "SOCKETS", "compared", "networks"]

WORKER = Path(__file__).resolve().parent / "nccl_worker.py"
ROUNDS, SECONDS = 3, 90
SOCKETS = 4
FOUND = "Using network Herringbone"
MOST_RATIO = 1.0

Processes = Callable[[list[str], list[dict[str, str]], float], list[tuple[int | None, str]]]


def networks(library: Path) -> dict[str, dict[str, str]]:
    """The variables of each network, with the same number of sockets for a connection. Ranks have identities of hosts of their own."""
    common = {
        "NCCL_DEBUG": "INFO",
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_IB_DISABLE": "1",
        "NCCL_P2P_DISABLE": "1",
        "NCCL_SHM_DISABLE": "1",
    }
    socket = {"NCCL_NET": "Socket", "NCCL_SOCKET_NTHREADS": "1", "NCCL_NSOCKS_PERTHREAD": str(SOCKETS)}
    ours = {"NCCL_NET": "Herringbone", "NCCL_NET_PLUGIN": str(library), "HERRINGBONE_NCCL_STREAMS": str(SOCKETS)}
    return {"Socket": common | socket, "Herringbone": common | ours}


def compared(library: Path, processes: Processes) -> list[Row]:
    """Rounds of both in turns: the times of each size, and that NCCL says which network it uses."""
    times: dict[str, dict[str, list[float]]] = {}
    for number in range(ROUNDS):
        for name, variables in networks(library).items():
            ranks = [variables | {"NCCL_HOSTID": f"host{rank}-{number}"} for rank in range(2)]
            ended = processes([str(WORKER)], ranks, SECONDS)
            outputs = "\n".join(output for _, output in ended)
            figures = [line for line in outputs.splitlines() if line.startswith("{")]
            if [code for code, _ in ended] != [0, 0] or not figures:
                return [Row("plugin", f"over {name}: {reason(outputs)}", "failed", "right", False)]
            if name == "Herringbone" and FOUND not in outputs:
                return [Row("plugin", f"NCCL's log has no {FOUND!r}", "failed", "right", False)]
            for size, seconds in json.loads(figures[0]).items():
                times.setdefault(size, {}).setdefault(name, []).append(seconds)
    rows = [Row("plugin", f"NCCL's log: {FOUND}", "right", "right", True)]
    for size, of_both in times.items():
        ours, theirs = of_both["Herringbone"], of_both["Socket"]
        what = f"all_reduce of {size} MiB over NCCL, {SOCKETS} sockets each: {statistics.median(ours) * 1e3:.2f} ms, NCCL's {statistics.median(theirs) * 1e3:.2f} ms"
        rows.append(judged("plugin", what, ratio(ours, theirs), "x", MOST_RATIO, is_real=True))
    return rows


def reason(output: str) -> str:
    """The line of an output that says most."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line or "WARN" in line]
    return ([*lines, *errors] or ["no output"])[-1][:150]
