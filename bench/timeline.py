"""Traced steps as a picture (what computes, and beside it each bucket's all-reduce) and as a Chrome trace."""

import statistics

from figures import duration
from svg import BLUE, FAINT, GREY, INK, ORANGE, RED, box, line, picture, text

WIDTH, LEFT, RIGHT = 1200, 170, 40
ROW, BAR = 25, 17
FORWARD, BACKWARD, OPTIMIZER = "#b8c0cc", ("#7f8ea3", "#98a5b7"), "#d3d9e0"


def steps_seconds(step):
    """How long a step took."""
    return step["end"] - step["forward"]


def typical(steps):
    """The step of median length."""
    return sorted(steps, key=steps_seconds)[len(steps) // 2]


def last_gradient(step):
    """When the backward pass had nothing left to compute."""
    return step["layers"][-1][1]


def hidden(steps):
    """The share of the time with a bucket under way during which the backward pass still computed."""
    return statistics.median(hidden_share(step) for step in steps)


def hidden_share(step):
    """`hidden` for one step."""
    under_way = union([(each["began"], each["ended"]) for each in step["buckets"]])
    total = sum(end - begin for begin, end in under_way)
    covered = sum(max(0.0, min(end, last_gradient(step)) - begin) for begin, end in under_way)
    return covered / total if total else 1.0


def union(spans):
    """The same points of time as spans that do not overlap, in order."""
    merged = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((begin, end))
    return merged


def computing(step):
    """(name, kind, begin, end) of what a worker computes in a step, and of its wait for sums, in order."""
    parts, began = [("forward", "forward", step["forward"], step["backward"])], step["backward"]
    for layer, ended in step["layers"]:
        parts.append((f"backward of layer {layer}", "backward", began, ended))
        began = ended
    parts.append(("waiting for sums", "waiting", began, step["optimizer"]))
    return [*parts, ("optimizer", "optimizer", step["optimizer"], step["end"])]


def chrome(ranks):
    """Chrome's trace format (`chrome://tracing`, Perfetto): one process per backend and rank, microseconds."""
    starts = [step["forward"] for trace in ranks for steps in trace.values() for step in steps]
    origin, events = min(starts), []
    for rank, trace in enumerate(ranks):
        for place, (backend, steps) in enumerate(trace.items()):
            process = {"pid": place * len(ranks) + rank, "ph": "M", "name": "process_name"}
            events.append(process | {"args": {"name": f"{backend}, rank {rank}"}})
            for step in steps:
                spans = [(name, 0, begin, end) for name, _, begin, end in computing(step)]
                for lane, each in enumerate(sorted(step["buckets"], key=lambda each: each["began"]), 1):
                    spans.append((f"all-reduce of {each['bytes']} bytes", lane, each["began"], each["ended"]))
                events += [
                    {"name": name, "ph": "X", "pid": process["pid"], "tid": lane}
                    | {"ts": (begin - origin) * 1e6, "dur": (end - begin) * 1e6}
                    for name, lane, begin, end in spans
                ]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def panel(backend, steps, y, scale):
    """One backend's typical step of one rank: a row for the worker and one for each bucket."""
    step = typical(steps)

    def at(moment):
        return LEFT + (moment - step["forward"]) * scale

    share = f"{hidden_share(step):.0%} of the communication is hidden under backward"
    waits = step["optimizer"] - last_gradient(step)
    yield text(40, y, backend, 16, weight=700)
    yield text(LEFT, y, f"{duration(steps_seconds(step))} a step; {share}; {duration(waits)} of waiting", 14)
    top = y + 16
    bottom = top + ROW * (1 + len(step["buckets"]))
    yield from worker_row(step, top, at)
    for number, each in enumerate(sorted(step["buckets"], key=lambda each: each["began"]), 1):
        yield from bucket_row(number, each, last_gradient(step), top + ROW * number, at)
    for moment in (step["backward"], last_gradient(step)):
        yield line([(at(moment), top - 4), (at(moment), bottom)], INK, 1, "3 3")
    yield text((at(step["backward"]) + at(last_gradient(step))) / 2, bottom + 13, "backward pass", 12, GREY, "middle")


def worker_row(step, y, at):
    """What the worker does."""
    yield text(LEFT - 12, y + 13, "worker", 12.5, GREY, "end")
    for number, (name, kind, begin, end) in enumerate(computing(step)):
        fill = {"forward": FORWARD, "backward": BACKWARD[number % 2], "waiting": RED, "optimizer": OPTIMIZER}[kind]
        yield box(at(begin), y, at(end) - at(begin), BAR, fill, f"{name}: {duration(end - begin)}")


def bucket_row(number, bucket, computed, y, at):
    """A bucket's all-reduce, in two colours: before and after `computed`, when the worker has all its gradients."""
    name = f"bucket {number}, {bucket['bytes'] / 2**20:.1f} MiB"
    tip = f"{name}: {duration(bucket['ended'] - bucket['began'])}"
    middle = min(max(bucket["began"], computed), bucket["ended"])
    yield text(LEFT - 12, y + 13, name, 12.5, GREY, "end")
    yield line([(LEFT, y + BAR / 2), (WIDTH - RIGHT, y + BAR / 2)], FAINT)
    for begin, end, fill in ((bucket["began"], middle, BLUE), (middle, bucket["ended"], ORANGE)):
        if end > begin:
            yield box(at(begin), y, at(end) - at(begin), BAR, fill, tip)


def legend(y):
    """What the colours mean."""
    x = 40
    for fill, meaning in (
        (FORWARD, "forward"),
        (BACKWARD[0], "backward, layer by layer"),
        (OPTIMIZER, "optimizer"),
        (BLUE, "bucket summed while backward computes"),
        (ORANGE, "bucket summed after it"),
        (RED, "worker waits"),
    ):
        yield box(x, y - 11, 13, 13, fill)
        yield text(x + 19, y, meaning, 13)
        x += 42 + 7.2 * len(meaning)


def timeline(trace, about):
    """The picture of one rank: `trace` holds the steps of each backend; `about` says of which job."""
    longest = max(steps_seconds(typical(steps)) for steps in trace.values())
    scale = (WIDTH - LEFT - RIGHT) / longest
    title = "One training step, and the all-reduces of its gradients"
    parts, y = [text(40, 44, title, 22, weight=700), text(40, 68, about, 14, GREY), *legend(100)], 148
    for backend, steps in trace.items():
        parts.extend(panel(backend, steps, y, scale))
        y += 16 + ROW * (1 + len(typical(steps)["buckets"])) + 50
    parts.extend(ruler(longest, scale, y - 16))
    return picture(WIDTH, y + 24, title, parts)


def ruler(longest, scale, y):
    """Milliseconds from the start of the step."""
    step = next(each for each in (m * 10**e for e in range(-4, 4) for m in (1, 2, 5)) if longest / each <= 10)
    yield line([(LEFT, y), (WIDTH - RIGHT, y)], GREY)
    for number in range(int(longest / step) + 1):
        x = LEFT + number * step * scale
        yield line([(x, y), (x, y + 5)], GREY)
        yield text(x, y + 18, f"{number * step * 1e3:g} ms", 12, GREY, "middle")
