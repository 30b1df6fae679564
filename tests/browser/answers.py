"""Answers of jobs as /job.json gives them: recorded ones, and made ones of any size."""

import json
import pathlib

RECORDED = pathlib.Path(__file__).resolve().parent / "recorded"
HOSTILE = '<img src=x onerror="document.title=1">'
TURNED = "\u202eevil\u0007"


def recorded(name, *, history=False):
    """What `herringbone status --json` printed of a real job: running, with a stopped rank, with a killed reducer, ..."""
    answer = json.loads((RECORDED / f"{name}.json").read_text())
    answer |= {"asked_at": 1.0, "own": answer["members"][0]["address"]}
    if history:
        times = range(-300, 0, 5)
        rates = [[4e7 + 1e6 * (-time * (place + 3) % 17) for time in times] for place in range(len(answer["members"]))]
        kept = [{"at": [1.0 + time for time in times], "sent": sent, "received": sent} for sent in rates]
        answer["history"] = {member["address"]: moved for member, moved in zip(answer["members"], kept)}
    return answer


def link(to, rate, by="tcp"):
    """A link of a member, of which as much comes as goes."""
    moved = {"sent": int(rate * 60), "received": int(rate * 60), "sent_per_second": rate, "received_per_second": rate}
    return {"to": to, "by": by, "reason": None, **moved}


def member(rank, host, links, **more):
    """A worker that answers and is in an operation."""
    operation = {"name": "all_reduce of 6553600 f32, sum (operation 17)", "group": "world", "sequence": 17, "seconds": 0.02}
    group = {"name": "world", "group": 0, "ranks": 0, "generation": 0, "next": 18, "over": 16, "lost": None}
    fields = {"role": "worker", "rank": rank, "address": f"{host}:{7070 + rank}", "answers": True}
    fields |= {"host": host, "process": 1000 + rank, "issued": 18, "groups": [group], "links": links, "ports": None}
    fields |= {
        "operations": [operation | {"runs": True, "waits_for": []}],
        "unlisted": {"groups": 0, "operations": 0, "links": 0},
    }
    return fields | more


def ring(ranks, hosts, *, rate=2.5e8, host=lambda number: f"node-{number:03}.cluster.example"):
    """A job whose ranks send to their neighbours; the ranks of a host follow each other."""
    each = ranks // hosts
    members = []
    for rank in range(ranks):
        after, before = (rank + 1) % ranks, (rank - 1) % ranks
        inside = after // each == rank // each
        links = [link(f"rank {after}", rate * (4 if inside else 1), "shm" if inside else "tcp"), link(f"rank {before}", 0.0)]
        members.append(member(rank, host(rank // each), links))
    job = {"job": "00c0ffee00c0ffee", "epoch": 0, "world": ranks, "members": members, "waits": [], "silent_seconds": None}
    return job | {"asked_at": 1.0, "own": members[0]["address"]}


def stop(answer, rank, waiting, seconds=4.2, sequence=17):
    """One rank does not answer any more, and others wait for it."""
    stopped = next(member for member in answer["members"] if member["rank"] == rank)
    for name in ("host", "process", "issued", "groups", "links", "operations", "unlisted", "ports"):
        del stopped[name]
    stopped |= {"answers": False, "error": "no answer for 1 s: stopped, or cut off?"}
    operation = f"all_reduce of 6553600 f32, sum (operation {sequence})"
    wait = {"for": f"rank {rank}", "by": [f"rank {other}" for other in waiting], "operation": operation, "group": "world"}
    answer["waits"].append(wait | {"sequence": sequence, "seconds": seconds, "more": 0, "why": "it does not answer"})
    return answer


def hostile():
    """A job that calls everything by names that would be markup, or that turn a text around."""
    answer = ring(4, 2, host=lambda number: HOSTILE if number else TURNED)
    answer["job"] = HOSTILE
    for each in answer["members"]:
        each["operations"][0] |= {"name": f"{HOSTILE}{TURNED}", "group": HOSTILE, "waits_for": [HOSTILE]}
        each["links"][0] |= {"by": "lost", "reason": HOSTILE}
    answer["members"][3] |= {"role": HOSTILE, "address": HOSTILE, "answers": False, "error": HOSTILE}
    wait = {"for": HOSTILE, "by": [HOSTILE, TURNED], "operation": HOSTILE, "group": HOSTILE, "sequence": None, "seconds": 9.0}
    answer["waits"].append(wait | {"more": 0, "why": HOSTILE})
    table = recorded("tables")["members"][0]
    table["tables"]["tables"][0] |= {"name": HOSTILE, "what": TURNED}
    table["tables"]["servers"] = [HOSTILE, TURNED, "x"]
    answer["members"].append(table | {"address": HOSTILE * 20})
    return answer
