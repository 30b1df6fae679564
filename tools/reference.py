"""Writes docs/reference/commands.md and python.md from the programs' own texts.

Usage: tools/reference.py HERRINGBONE FOLDER. Commands come from `herringbone VERB --help`, Python from the docstrings, which are
read without importing anything. Standard library only.
"""

import ast
import os
import pathlib
import re
import subprocess
import sys

PACKAGE = pathlib.Path(__file__).resolve().parents[1] / "python" / "herringbone"
SECTIONS = ("Args:", "Returns:", "Raises:")
NOTE = "<!-- Written by tools/reference.py; `make reference` writes it again. -->"
PARTS = [
    ("Joining and leaving", "herringbone", "joining.py", ["init", "finalize", "empty"]),
    ("Communicator", "group", "communicator.py", ["Communicator"]),
    ("Work", "work", "work.py", ["Work"]),
    ("Error feedback", "residuals", "compression.py", ["Residuals"]),
    ("Options", "herringbone", "options.py", ["Options"]),
    ("Dependency engine", "engine", "dependency.py", ["Engine"]),
    ("Elastic training", "job", "elastic.py", ["Elastic"]),
    ("Parameter server", "servers", "tables.py", ["ParameterServer"]),
    ("A table", "table", "tables.py", ["Table"]),
    ("An embedding on servers", "embedding", "embedding.py", ["TableEmbedding"]),
    ("Asynchronous training", "optimizer", "optim/async_sgd.py", ["AsyncSGD"]),
    ("Training among peers", "optimizer", "optim/threshold_sgd.py", ["ThresholdSGD"]),
    ("Factors of linear layers", "herringbone.optim", "optim/factors.py", ["factor_broadcast"]),
    ("Layers that send factors", "factors", "optim/factors.py", ["FactorBroadcast"]),
    ("KVStore", "kvstore", "kvstore/creation.py", ["create"]),
    ("A store", "kv", "kvstore/store.py", ["KVStore"]),
    ("What a store's pushes do", "kv", "kvstore/updating.py", ["Updates"]),
    ("Rows of a store", "kv", "kvstore/sparse_pulls.py", ["SparsePulls"]),
    ("Optimizers of stores", "kvstore", "kvstore/optimizer.py", ["create_optimizer"]),
    ("An optimizer of stores", "optimizer", "kvstore/optimizer.py", ["Optimizer"]),
    (
        "Learning rate schedulers",
        "scheduler",
        "kvstore/schedulers.py",
        ["LRScheduler", "FactorScheduler", "MultiFactorScheduler", "PolyScheduler", "CosineScheduler"],
    ),
    (
        "Programs that continue where they were",
        "rabit",
        "rabit.py",
        [
            "init",
            "finalize",
            "get_rank",
            "get_world_size",
            "is_distributed",
            "get_processor_name",
            "tracker_print",
            "allreduce",
            "broadcast",
            "allgather",
            "load_checkpoint",
            "checkpoint",
            "lazy_checkpoint",
            "version_number",
            "kept_bytes",
        ],
    ),
    ("With torch", "herringbone.torch", "torch/memory.py", ["empty"]),
    ("Compression with torch", "herringbone.torch", "torch/compression_hooks.py", ["compression_hook", "compression_hook_of"]),
    ("A compression hook", "hook", "torch/compression_hooks.py", ["CompressionHook"]),
    ("Compression of single calls with torch", "herringbone.torch", "torch/compressed.py", ["compression"]),
    ("Training by shards", "shards", "torch/shards.py", ["Shards"]),
    ("A step", "step", "torch/shards_step.py", ["Step"]),
    ("A shard", "shard", "torch/shards_step.py", ["Shard"]),
    ("A loader of shards", "loader", "torch/shards_loading.py", ["ShardLoader"]),
    ("Averaging of parameters", "averaging", "optim/local_sgd.py", ["LocalSGD", "PostLocalSGD"]),
    ("Outer steps on mean differences", "averaging", "optim/diloco.py", ["DiLoCo"]),
    ("What the ways to average share", "averaging", "optim/averaging.py", ["Averaging"]),
    ("Sums of shards", "group", "shards.py", ["ShardGroup"]),
    ("Timelines with torch", "herringbone.torch", "torch/timeline.py", ["start_timeline", "stop_timeline"]),
    ("Priorities with torch", "herringbone.torch", "torch/priorities.py", ["priority"]),
    ("Profiles of models", "herringbone.profile", "profile/reading.py", ["read", "parsed"]),
    ("Files of profiles", "herringbone.profile", "profile/writing.py", ["text"]),
    ("A profile of a model", "profile", "profile/document.py", ["Profile"]),
    ("A layer of a profile", "layer", "profile/document.py", ["Layer"]),
    ("A parameter of a layer", "parameter", "profile/document.py", ["Parameter"]),
]
"""Each heading of the page about Python: what stands before a name, the file, and the names. Before a method it is what examples call
an object of its class. Errors follow."""
CONSTRUCTED = {
    **dict.fromkeys(("CosineScheduler", "FactorScheduler", "LRScheduler", "MultiFactorScheduler", "PolyScheduler"), "kvstore"),
    "DiLoCo": "herringbone.optim",
    "AsyncSGD": "herringbone.optim",
    "Elastic": "herringbone",
    "Engine": "herringbone",
    "LocalSGD": "herringbone.optim",
    "ParameterServer": "herringbone",
    "PostLocalSGD": "herringbone.optim",
    "ShardGroup": "herringbone",
    "Shards": "herringbone.torch",
    "TableEmbedding": "herringbone.embedding",
    "ThresholdSGD": "herringbone.optim",
}
"""The classes that programs make with arguments, and from where they import them; calls return objects of the others."""
PIECES = {
    "Communicator": [
        ("collectives/calls.py", "Calls"),
        ("collectives/folds.py", "Folds"),
        ("collectives/moves.py", "Moves"),
        ("collectives/messages.py", "Messages"),
    ],
}
"""The classes that a class is made of, whose methods the page lists as its own, before the rest."""


def output_of(binary, *words):
    """What the command prints, for a page of 100 columns."""
    environment = {"PATH": os.environ["PATH"], "COLUMNS": "100"}
    text = subprocess.run([binary, *words], stdout=subprocess.PIPE, text=True, check=True, env=environment).stdout
    return re.sub(r" +$", "", text, flags=re.MULTILINE)


def commands(binary):
    """The page about the command line."""
    overview = output_of(binary, "--help")
    parts = [
        f"# Commands\n{NOTE}",
        "`herringbone VERB --help` prints these texts. `herringbone completions SHELL` makes a shell complete them.",
        f"```text\n{overview.strip()}\n```",
    ]
    parts += [part for verb in verbs_of(overview) for part in described(binary, [verb])]
    return "\n\n".join(parts) + "\n"


def described(binary, words):
    """A verb's part of the page, and those of the verbs below it."""
    text = output_of(binary, *words, "--help")
    yield f"{'#' * (len(words) + 1)} herringbone {' '.join(words)}\n\n```text\n{text.strip()}\n```"
    for verb in verbs_of(text):
        yield from described(binary, [*words, verb])


def verbs_of(text):
    """The verbs that a text of `--help` lists."""
    headings = r"\n(?:Commands|Run|Measure|Understand|Set up):\n(.*?)(?=\n\n|\Z)"
    listed = "\n".join(re.findall(headings, text, re.DOTALL))
    return [verb for verb in re.findall(r"^  ([\w-]+) +[A-Z]", listed, re.MULTILINE) if verb != "help"]


def python():
    """The page about the Python package."""
    parts = [
        f"# Python\n{NOTE}",
        "`import herringbone` imports neither torch nor numpy. `help(herringbone.Communicator)` shows the same texts.",
    ]
    for heading, prefix, file, names in PARTS:
        parts.append(f"## {heading}")
        parts += entries(prefix, tree(file), names)
    parts.append("## Names of arguments")
    parts.append(
        "Type checkers and editors know them as types, of `herringbone`. A program may compute such a name as a string, too."
    )
    parts.append("\n".join(aliases(tree("names.py").body)))
    parts.append("## Errors\n\n[Troubleshooting](../troubleshooting.md) says what to do about each.")
    parts.append("\n".join(error(item) for item in tree("errors.py").body if isinstance(item, ast.ClassDef)))
    return "\n\n".join(parts) + "\n"


def aliases(body):
    """The names of each type of a file, in a line of a list, behind the text below it."""
    for item, text in zip(body, body[1:]):
        if isinstance(item, ast.Assign) and isinstance(text, ast.Expr):
            names = [f"`{ast.unparse(each)}`" for each in ast.walk(item.value) if isinstance(each, ast.Constant)]
            yield f"* `{ast.unparse(item.targets[0])}`: {marked(ast.literal_eval(text.value))} {', '.join(names)}."


def error(item):
    """An error's class in a line of a list."""
    bases = ", ".join(f"`{ast.unparse(base)}`" for base in item.bases)
    return f"* `{item.name}` ({bases}): {' '.join(prose(ast.get_docstring(item)).split())}"


def tree(file):
    """A file of the package as syntax."""
    return ast.parse((PACKAGE / file).read_text())


def named(body, name):
    """The class or function of a name."""
    return next(item for item in body if getattr(item, "name", None) == name and not is_overload(item))


def is_overload(item):
    """Whether it only declares types for some of a function's arguments."""
    return any(getattr(each, "id", None) == "overload" for each in getattr(item, "decorator_list", []))


def entries(prefix, module, names):
    """Functions and classes of a file."""
    for name in names:
        item = named(module.body, name)
        if isinstance(item, ast.ClassDef):
            yield prose(ast.get_docstring(item))
            if name in CONSTRUCTED:
                yield entry(CONSTRUCTED[name], named(item.body, "__init__"), name)
            for file, piece in PIECES.get(name, []):
                yield from members(named(tree(file).body, piece), prefix)
            yield from members(item, prefix)
        else:
            yield entry(prefix, item)


def members(item, prefix):
    """A class's own methods, or its fields with the text below each."""
    for index, each in enumerate(item.body):
        is_setter = any(isinstance(of, ast.Attribute) and of.attr == "setter" for of in getattr(each, "decorator_list", ()))
        is_shown = isinstance(each, ast.FunctionDef) and not each.name.startswith("_") and not is_setter
        if is_shown and not is_overload(each):
            yield entry(prefix, each)
        elif isinstance(each, ast.AnnAssign) and not each.target.id.startswith("_"):
            text = item.body[index + 1].value.value
            yield f"* `{each.target.id}`: {prose(text)}"


def entry(prefix, item, called=None):
    """A function: its call, by its own name if it is not called by another one, and its text."""
    name = called or item.name
    is_property = any(getattr(each, "id", None) == "property" for each in item.decorator_list)
    call = name if is_property else f"{name}({arguments(item.args)})"
    return f"### {prefix}.{name}\n\n`{prefix}.{call}`\n\n{prose(ast.get_docstring(item))}"


def arguments(given):
    """The arguments of a call, without types."""
    for each in (*given.posonlyargs, *given.args, given.vararg, *given.kwonlyargs, given.kwarg):
        if each is not None:
            each.annotation = None
    given.args = [each for each in given.args if each.arg != "self"]
    return ast.unparse(given)


def prose(text):
    """A docstring as Markdown."""
    lines, section = [], None
    for line in (text or "").splitlines():
        if line in SECTIONS:
            section = line
            lines += [f"**{line.rstrip(':')}**", ""]
        elif section and re.match(r"    \S", line):
            name, colon, rest = line.strip().partition(": ")
            is_item = section != "Returns:" and colon
            lines.append(f"* `{name}`: {rest}" if is_item else line.strip())
        elif section and line.startswith("        "):
            lines.append("  " + line.strip())
        elif line and not line.startswith(" "):
            section = None
            lines.append(line)
        else:
            lines.append(line)
    return fenced(marked("\n".join(lines)))


def marked(text):
    """Markdown in place of the marks of reStructuredText."""
    text = re.sub(r":(?:meth|func):`~?\.?([\w.]+)`", r"`\1()`", text)
    text = re.sub(r":(?:class|attr|mod|data):`~?\.?([\w.]+)`", r"`\1`", text)
    return text.replace("``", "`")


def fenced(text):
    """Indented blocks behind a double colon as fenced ones."""
    block = re.compile(r"::\n\n((?:    .*\n?|\n)+)")
    whole = block.sub(lambda match: f":\n\n```text\n{re.sub('^    ', '', match[1], flags=re.M).rstrip()}\n```\n", text)
    return whole.strip()


def main():
    binary, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "commands.md").write_text(commands(binary))
    (folder / "python.md").write_text(python())


if __name__ == "__main__":
    main()
