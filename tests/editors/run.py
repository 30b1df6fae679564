"""Programs of each interface as an editor sees them, by pyright and its language server; `make editors` calls it.

The programs and `typed_calls.py` have no error in pyright's strict mode, in which nothing that they use is of unknown type. Each
mistake that they plant is found: a `type: ignore` that is not needed is an error. Then an editor asks for completions and for
texts, at places of small programs.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

from server import Server

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PROGRAMS = [*sorted((HERE / "programs").glob("*.py")), ROOT / "python" / "tests" / "typed_calls.py"]
GROUP = "import numpy as np\nimport herringbone\ngroup = herringbone.init()\narray = np.ones(4, np.float32)\n"
COMPLETED = [
    (GROUP + "group.|", {"all_reduce", "broadcast", "send", "shrink", "explain", "rank"}),
    (GROUP + "group.all_reduce(array, async_op=True).|", {"wait", "done", "source"}),
    (GROUP + "group.all_reduce(array).|", {"mean", "dtype"}),
    (GROUP + 'group.all_reduce(array, "|")', {'"sum"', '"average"', '"bit_xor"'}),
    (GROUP + 'group.all_reduce(array, compression="|")', {'"int8"', '"auto"'}),
    (GROUP + 'group.explain(3, collective="|")', {'"all_gather"'}),
    ('import herringbone\nherringbone.Options(transport="|")', {'"shm"', '"tcp"'}),
    ("import herringbone\nherringbone.|", {"init", "Communicator", "PeerLostError", "Operation"}),
    ("import herringbone.torch\nherringbone.torch.|", {"Shards", "compression", "compression_hook"}),
    ("import herringbone.optim\nherringbone.optim.|", {"AsyncSGD", "DiLoCo", "LocalSGD", "ThresholdSGD"}),
    ("from herringbone import kvstore\nkvstore.create().|", {"push", "pull", "pushpull", "rank"}),
    ("import herringbone.horovod.torch as hvd\nhvd.|", {"init", "DistributedOptimizer", "elastic", "allreduce"}),
    ("from herringbone import rabit\nrabit.|", {"allreduce", "checkpoint", "SUM"}),
]
"""A program with a `|` where the cursor is, and some of what an editor has to offer there."""
SHOWN = [
    (GROUP + "group.all_reduce|(array)", ["Fold ``array`` over all ranks", 'op: Operation = "sum"']),
    (GROUP + "work = group.all_reduce(array, async_op=True)\nwork|", ["Work[Array["]),
    (GROUP + "group.recv(array, async_op=True).wait|()", ["-> Array[", "Block until it has finished"]),
    ("import herringbone\nherringbone.Communicator|", ["membership in a group of ranks"]),
]
"""A program with a `|` behind a name, and words of what an editor has to show of it."""


def settings(folder):
    """Writes those of a project in strict mode, for this Python."""
    chosen = {
        "include": ["."],
        "extraPaths": [str(ROOT / "python")],
        "typeCheckingMode": "strict",
        "reportUnnecessaryTypeIgnoreComment": "error",
        "pythonVersion": "3.10",
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(chosen))


def check_types(folder):
    """Complaints of pyright about the programs."""
    for program in PROGRAMS:
        (folder / program.name).write_text(program.read_text())
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", "--project", str(folder)]
    found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout)
    if found["summary"]["filesAnalyzed"] != len(PROGRAMS):
        yield f"{found['summary']['filesAnalyzed']} of {len(PROGRAMS)} programs were read"
    for complaint in found["generalDiagnostics"]:
        line = complaint["range"]["start"]["line"] + 1
        yield f"{pathlib.Path(complaint['file']).name}:{line}: {complaint['message']}"


def check_editor(folder):
    """What an editor does not offer or show."""
    with Server([sys.executable, "-m", "pyright.langserver", "--stdio"], folder) as server:
        for text, wanted in COMPLETED:
            missing = wanted - server.completions(text)
            if missing:
                yield f"{text.splitlines()[-1]}: {', '.join(sorted(missing))} are not offered"
        for text, wanted in SHOWN:
            shown = server.hover(text)
            missing = [each for each in wanted if each not in shown]
            if missing:
                yield f"{text.splitlines()[-1]}: not shown: {missing}; but:\n{shown}"


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name).resolve()
        settings(folder)
        wrong = [*check_types(folder), *check_editor(folder)]
    print(*wrong, sep="\n")
    print(f"{len(PROGRAMS)} programs, {len(COMPLETED)} completions, {len(SHOWN)} texts: {len(wrong)} are wrong")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
