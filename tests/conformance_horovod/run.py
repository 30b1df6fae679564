"""Horovod's own tests on Herringbone, with only the import replaced; `make conformance-horovod HOROVOD=folder` calls it.

The folder has Horovod's sources, with the tests; they are not part of this repository. Each file runs under `herringbone
horovodrun` with HERRINGBONE_REPLACE=horovod. The exit code is 0 if no method fails, but for what OWN_REASONS says.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version

HERE = pathlib.Path(__file__).resolve().parent
FILES = {
    "test/parallel/test_torch.py": (2, 4),
    "test/parallel/test_adasum_pytorch.py": (2, 4),
    "test/parallel/test_timeline.py": (2,),
    "test/parallel/test_process_sets_static.py": (2,),
    "test/single/test_torch_elastic.py": (1,),
}
"""The tests, and with how many ranks each file runs."""
OUTCOMES = ("passed", "failed", "skipped")
OWN_REASONS = {
    r"has no attribute 'getargspec'": "it calls `inspect.getargspec`, which Python 3.11 removed",
    r"No module named 'distutils'": "it imports `distutils`, which Python 3.12 removed",
    r"'NoneType' object has no attribute 'max'": "it expects gradients of zeros, but `zero_grad()` of torch 2 sets them to None",
    r"has no attribute 'alltrue'": "it calls `numpy.alltrue`, which numpy 2 removed",
    r"Herringbone has no horovod\.tensorflow": "it imports `horovod.tensorflow`, which Herringbone does not have",
    r"Muon only supports 2D parameters": "it builds every optimizer of torch for one-dimensional parameters, but Muon (from torch 2.9 on) needs two dimensions",
    r"unexpected keyword argument 'sparse'": "it passes an argument that Horovod has renamed `sparse_as_dense`",
}
"""Failures that say nothing about Herringbone: a part of the error's text, and the reason."""
OWN_METHODS = {
    "test_horovod_join_allreduce": "it expects `floor_divide` to round towards zero, as in torch before 1.13; Horovod and Herringbone do so",
}
"""The same for methods whose error does not tell."""


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="Horovod's sources")
    parser.add_argument("--np", type=int, action="append", help="ranks, not each file's own numbers; the page stays as it was")
    parser.add_argument("--only", action="append", help="files with this in their names; the page stays as it was")
    parser.add_argument("--timeout", type=float, default=60, help="seconds for one method; default: %(default)s")
    parser.add_argument("--of", default="", help="a sentence for the page about which Horovod it is")
    parser.add_argument("--record", type=pathlib.Path, help="a file for the tables")
    return parser.parse_args()


class Run:
    """What became of the methods of one file, with some number of ranks."""

    def __init__(self, file, size):
        self.file, self.size = file, size
        self.rows = {}
        """Of each method: its outcome and the reason, the worst of all ranks."""

    def start(self, folder, seconds):
        """Runs the file; again without the methods that are done, as long as a process dies in one."""
        while not self.ended(folder, seconds):
            pass
        print(f"{self.title()}: {self.summary()}", file=sys.stderr, flush=True)

    def ended(self, folder, seconds):
        """Whether the ranks came to the end of the file."""
        with tempfile.TemporaryDirectory() as report:
            worker = [sys.executable, str(HERE / "worker.py"), str(folder / self.file), report, str(seconds)]
            command = [sys.executable, "-m", "herringbone", "horovodrun", "-np", str(self.size), *worker, *self.rows]
            environment = os.environ | {"HERRINGBONE_REPLACE": "horovod", "HOROVOD_DYNAMIC_PROCESS_SETS": "1"}
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            ranks = [lines_of(pathlib.Path(report) / f"{rank}.jsonl") for rank in range(self.size)]
        before = set(self.rows)
        for lines in ranks:
            self.note(lines)
        if all(lines and lines[-1]["outcome"] == "ended" for lines in ranks):
            return True
        if set(self.rows) == before:
            raise SystemExit(f"{self.title()}: the ranks ended with {done.returncode}:\n{done.stdout[-3000:]}")
        return False

    def note(self, lines):
        """What a rank has told; a method that it began and did not end has failed with its process."""
        for line in lines:
            if line["outcome"] == "began":
                self.worsen(line["name"], "began", "its process ended in it")
            elif line["outcome"] != "ended":
                self.worsen(line["name"], line["outcome"], line["reason"])
        for name, (outcome, reason) in self.rows.items():
            if outcome == "began":
                self.rows[name] = ("failed", reason)

    def worsen(self, name, outcome, reason):
        order = ("began", "passed", "skipped", "failed")
        known = self.rows.get(name, ("began", ""))
        # A rank that waits for one that has failed tells less than that one.
        tells_more = known[0] == outcome == "failed" and known[1].startswith("Slow")
        if name not in self.rows or order.index(outcome) > order.index(known[0]) or tells_more:
            self.rows[name] = (outcome, reason)

    def title(self):
        return f"{self.file}, {self.size} ranks"

    def count(self, outcome):
        return sum(1 for each, _ in self.rows.values() if each == outcome)

    def summary(self):
        return ", ".join(f"{self.count(outcome)} {outcome}" for outcome in OUTCOMES)


def lines_of(file):
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def own_reason(name, text):
    """Why a failure says nothing about Herringbone, if so."""
    return OWN_METHODS.get(name) or next((why for part, why in OWN_REASONS.items() if re.search(part, text)), None)


def tables(runs):
    """The outcomes in Markdown."""
    lines = ["| file | ranks | passed | failed | skipped |", "|---|---|---|---|---|"]
    for run in runs:
        lines.append(f"| {run.file} | {run.size} | " + " | ".join(str(run.count(outcome)) for outcome in OUTCOMES) + " |")
    for outcome, heading in (("failed", "Failed"), ("skipped", "Skipped by the tests")):
        found = {}
        for run in runs:
            for name, (each, reason) in run.rows.items():
                if each == outcome:
                    why = (outcome == "failed" and own_reason(name, reason)) or reason
                    found.setdefault((name or pathlib.Path(run.file).name, why), []).append(str(run.size))
        if found:
            lines += ["", f"## {heading}", "", "| method | ranks | why |", "|---|---|---|"]
        for (name, why), sizes in sorted(found.items()):
            text = why.replace("|", "\\|")[:200]
            lines.append(f"| {name} | {', '.join(sizes)} | {text} |")
    return "\n".join(lines) + "\n"


def page(runs, of):
    """The page of the documentation."""
    versions = f"torch {version('torch')}, Python {sys.version.split()[0]}, {time.strftime('%Y-%m-%d')}"
    summary = f" {of}" if of else ""
    return f"""# Horovod's own tests
These are the results of Horovod's own tests on Herringbone, with only the import replaced: each file ran under `herringbone
horovodrun` with `HERRINGBONE_REPLACE=horovod`. `make conformance-horovod HOROVOD=folder` wrote this page from a folder with Horovod's
sources, which are not part of this repository: {versions}.{summary}

{tables(runs)}"""


def main():
    options = arguments()
    missing = [file for file in FILES if not (options.folder / file).exists()]
    if len(missing) == len(FILES):
        raise SystemExit(f"{options.folder} has none of {', '.join(FILES)}; give a folder with Horovod's sources")
    runs = []
    for file, sizes in FILES.items():
        if file in missing or (options.only and not any(part in file for part in options.only)):
            continue
        for size in sizes if sizes == (1,) else options.np or sizes:
            runs.append(Run(file, size))
            runs[-1].start(options.folder, options.timeout)
    for file in missing:
        print(f"{file} is not in {options.folder}", file=sys.stderr)
    print(tables(runs))
    if options.record and not (options.np or options.only or missing):
        options.record.write_text(page(runs, options.of))
    failures = [
        name for run in runs for name, (outcome, why) in run.rows.items() if outcome == "failed" and own_reason(name, why) is None
    ]
    print(f"{len(failures)} methods should pass and do not")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
