"""The comparison as one HTML page that works offline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from .options import Options
from .pictures import DARK, LIGHT, Theme, panels, style
from .report import cells_of, headings
from .results import Row

__all__ = ["COLUMN_NOTES", "page"]

COLUMN_NOTES = (
    ("steps", "steps, time", "the mean number of steps of a worker, and the seconds of the slowest worker"),
    ("step_s", "step", "the mean time of a worker's step, without the first one"),
    (
        "rest_s",
        "rest",
        "a step without computing gradients and sleeping: moving bytes, waiting for other processes, the optimizer. Computing is "
        "measured before the training, while all workers compute. A negative value means that it took less in the training",
    ),
    (
        "predicted_s",
        "predicted",
        "the simulator's prediction for the communication of a step over these links, if it has a plan for it",
    ),
    ("cpu_s", "CPU", "processor seconds of all workers and servers together"),
    ("sent_per_step", "sent/step", "payload that a worker sends in a step, the mean over all steps and workers"),
    (
        "staleness",
        "stale, most",
        "how many updates of others the servers accepted between a worker's pull and its push: the mean, and the maximum",
    ),
    (
        "steps",
        "loss",
        "the mean loss of a twentieth of the steps: the last ones within this number of steps, seconds or bytes sent",
    ),
    (
        "accuracy",
        "accuracy",
        "the fraction of test samples, on which no worker trains, that the trained network classifies correctly",
    ),
)
"""The meaning of the columns: a figure that the note needs, the headings, and the words."""


def _variables(theme: Theme, bad: str) -> str:
    return f"--ink: {theme.ink}; --paper: {theme.paper}; --faint: {theme.faint}; --grey: {theme.grey}; --bad: {bad};"


STYLE = f"""
:root {{ color-scheme: light dark; {_variables(LIGHT, "#b42318")} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK, "#ff8787")} }} }}
{style()}"""
STYLE += """
body { margin: 2rem auto; max-width: 84rem; padding: 0 1rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p, dd { color: var(--grey); margin: 0 0 .5rem; } dt { font-weight: 600; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .45rem; border-bottom: 1px solid var(--faint); text-align: right; }
td { white-space: nowrap; } th { vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: var(--paper); } td.bad { color: var(--bad); text-align: left; white-space: normal; }
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 25rem), 1fr)); gap: 1rem; }
svg { width: 100%; max-width: 36rem; height: auto; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1rem; } dd { margin: 0; }
@media (max-width: 40rem) { dl { grid-template-columns: 1fr; } dd { margin: 0 0 .5rem; } }
"""


def page(options: Options, rows: Sequence[Row], place: str) -> str:
    """The whole page. ``place`` describes the links over which the workers trained."""
    title = f"{options.model}: {len(rows)} architectures, {options.workers} workers"
    return "\n".join(
        [
            "<!DOCTYPE html>",
            f"<html lang='en'><head><meta charset='utf-8'><title>{escape(title)}</title>",
            "<meta name='viewport' content='width=device-width, initial-scale=1'>",
            f"<style>{STYLE}</style></head><body>",
            f"<h1>{escape(title)}</h1>",
            *(f"<p>{escape(line)}</p>" for line in _facts(options, rows, place)),
            "<div class='wide'>",
            *_table(rows),
            "</div>",
            "<h2>Loss of a worker</h2>",
            "<div class='panels'>",
            *panels(rows),
            "</div>",
            "<h2>Architectures</h2>",
            *_list((choice.label, choice.architecture.about) for choice in options.choices),
            "<h2>Columns</h2>",
            *_list(
                (name, words) for figure, name, words in COLUMN_NOTES if any(row.figures.get(figure) is not None for row in rows)
            ),
            "</body></html>\n",
        ]
    )


def _facts(options: Options, rows: Sequence[Row], place: str) -> Iterator[str]:
    about = next((row.about for row in rows if row.about), options.model)
    length = f"{options.steps} steps" if options.seconds is None else f"{options.seconds:g} s"
    yield f"The model is {about}. Each architecture trains for {length}, from seed {options.seed}, with SGD and momentum."
    yield f"{options.workers} workers, {place}."
    if options.slow is not None:
        who = "one worker, drawn for each step," if options.slow.worker is None else f"worker {options.slow.worker}"
        yield f"In each step {who} takes {options.slow.factor:g} times as long to compute."


def _table(rows: Sequence[Row]) -> Iterator[str]:
    heads = headings(rows)
    yield f"<table><thead><tr>{''.join(f'<th>{escape(head)}</th>' for head in heads)}</tr></thead><tbody>"
    for row in rows:
        cells = [f"<td>{escape(cell)}</td>" for cell in cells_of(row, rows)]
        if row.error:
            why = row.remark if row.missing else f"failed: {row.error}"
            cells.append(f"<td class='bad' colspan='{len(heads) - 1}'>{escape(why)}</td>")
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</tbody></table>"


def _list(entries: Iterator[tuple[str, str]] | Sequence[tuple[str, str]]) -> Iterator[str]:
    yield "<dl>"
    for name, words in entries:
        yield f"<dt>{escape(name)}</dt><dd>{escape(words)}</dd>"
    yield "</dl>"
