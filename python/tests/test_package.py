"""The package as it is installed: what it imports, its command, its stubs, its entry point."""

from __future__ import annotations

import ast
import copy
import importlib
import inspect
import os
import pickle
import re
import subprocess
import sys
import textwrap
from importlib.metadata import distribution
from typing import Any, get_args

import pytest
from conftest import clean_environment

import herringbone
from herringbone import errors
from herringbone._herringbone import Communicator, Kind, codecs
from herringbone.kinds import kind_of


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], env=clean_environment(environment), capture_output=True, text=True, timeout=180
    )


def test_importing_it_imports_neither_torch_nor_numpy() -> None:
    code = "import sys, herringbone, herringbone.__main__; print({'torch', 'numpy'} & set(sys.modules))"
    assert python("-c", code).stdout == "set()\n"


def test_importing_torch_imports_little_of_it() -> None:
    pytest.importorskip("torch")
    code = "import sys, torch; print(sorted(name for name in sys.modules if name.startswith('herringbone')))"
    assert python("-c", code).stdout == "['herringbone', 'herringbone.errors', 'herringbone.registration']\n"


def test_names_come_from_their_modules_when_they_are_asked_for() -> None:
    code = """import herringbone, sys
shown = {name for name in dir(herringbone) if name[:2] != "__"}
print(shown - set(herringbone.__all__) == {"errors"}, "herringbone.tables" in sys.modules)
print(herringbone.tables.Table is herringbone.Table, all(hasattr(herringbone, name) for name in dir(herringbone)), "__doc__" in dir(herringbone))
print(hasattr(herringbone, "nothing"), hasattr(herringbone, "torch"))"""
    assert python("-c", code).stdout == "True False\nTrue True True\nFalse False\n"


@pytest.mark.parametrize(
    ("code", "lacks", "part"),
    [
        ("import herringbone; herringbone.init()", "numpy", "herringbone.init"),
        ("import herringbone; herringbone.ParameterServer()", "numpy", "herringbone.ParameterServer"),
        ("import herringbone.horovod.numpy", "numpy", "herringbone.horovod.numpy"),
        ("import herringbone.rabit; herringbone.rabit.init()", "numpy", "herringbone.rabit"),
        ("import herringbone.torch", "torch", "herringbone.torch"),
        ("import herringbone.horovod.torch", "torch", "herringbone.horovod.torch"),
        ("import herringbone.embedding", "torch", "herringbone.embedding"),
    ],
)
def test_a_part_says_what_it_needs(code: str, lacks: str, part: str) -> None:
    outcome = python("-c", f"import sys; sys.modules[{lacks!r}] = None; {code}")
    said = f"ModuleNotFoundError: {part} needs {lacks}, which is not installed: pip install 'herringbone[{lacks}]'"
    assert outcome.stderr.splitlines()[-1] == said, outcome.stderr


@pytest.mark.parametrize("order", ["import herringbone, torch", "import torch, herringbone", "import torch"])
def test_torch_finds_the_backend_in_any_order_of_imports(order: str) -> None:
    pytest.importorskip("torch")
    code = f"""{order}
from torch.distributed import HashStore, all_reduce, get_backend, init_process_group
init_process_group("herringbone", store=HashStore(), rank=0, world_size=1)
tensor = torch.ones(2)
all_reduce(tensor)
print(get_backend(), tensor.tolist())"""
    outcome = python("-c", code)
    assert outcome.stdout == "herringbone [1.0, 1.0]\n", outcome.stderr


@pytest.mark.parametrize("order", ["import herringbone, torch", "import torch, herringbone"])
def test_torch_that_reads_no_entry_points_knows_the_backend(order: str) -> None:
    pytest.importorskip("torch")
    code = f"""import importlib.metadata
importlib.metadata.entry_points = lambda **_: []  # as before torch 2.14
{order}
import importlib.util
print("HERRINGBONE" in torch.distributed.Backend._plugins, type(importlib.util.find_spec("torch").loader).__name__)"""
    outcome = python("-c", code)
    assert outcome.stdout == "True SourceFileLoader\n", outcome.stderr


def test_looking_for_torch_does_not_import_it() -> None:
    code = """import herringbone, importlib.util, sys
found = importlib.util.find_spec("torch") is not None
print("torch" in sys.modules, found == (importlib.util.find_spec("torch") is not None))"""
    assert python("-c", code).stdout == "False True\n"


def test_the_entry_point_and_the_script_are_installed() -> None:
    points = {(point.group, point.value) for point in distribution("herringbone").entry_points}
    assert ("torch.distributed.backends", "herringbone.torch:register") in points
    assert ("console_scripts", "herringbone.__main__:main") in points


def test_the_command_is_the_rust_program() -> None:
    outcome = python("-m", "herringbone", "--version")
    assert outcome.returncode == 0
    assert outcome.stdout == f"herringbone {herringbone.__version__}\n"
    assert python("-m", "herringbone", "no-such-verb").returncode == 2
    script = os.path.join(os.path.dirname(sys.executable), "herringbone")
    assert subprocess.run([script, "--version"], capture_output=True, text=True).stdout == outcome.stdout


def test_the_stubs_are_true() -> None:
    pytest.importorskip("mypy")
    outcome = python("-m", "mypy.stubtest", "herringbone._herringbone")
    assert outcome.returncode == 0, outcome.stdout


def test_a_kind_of_calls_is_one_object_and_has_names_of_the_engine() -> None:
    summed = kind_of("all_reduce", "f32", "sum")
    assert summed is kind_of("all_reduce", "f32", "sum") and summed.collective == "all_reduce"
    assert summed == Kind("all_reduce", "f32", "sum") and hash(summed) == hash(Kind("all_reduce", "f32", "sum"))
    others = [("reduce", "f32", "sum"), ("all_reduce", "f64", "sum"), ("all_reduce", "f32", "average")]
    assert all(kind_of(*other) != summed for other in others)
    for names, said in (
        (("allreduce", "f32", "sum"), "allreduce: use all_reduce, reduce"),
        (("all_reduce", "float", "sum"), "float: "),
        (("all_reduce", "f32", "SUM"), "SUM: "),
    ):
        with pytest.raises(ValueError, match=said):
            kind_of(*names)


def test_types_of_names_have_those_of_the_engine() -> None:
    for collective in get_args(herringbone.Collective):
        assert kind_of(collective, "u8").collective == collective
    for op in get_args(herringbone.Operation):
        kind_of("all_reduce", "u8", op)

    def fixed(names: Any) -> set[str]:
        return set(get_args(get_args(names)[0]))

    assert fixed(herringbone.Codec) == {codec for codec in codecs() if ":" not in codec} | {"auto"}
    # What weighted(...) and sites(...) do stands in their parameters, so the words alone are no names.
    assert offered("algorithm") == fixed(herringbone.Algorithm) | {"sites", "weighted"}
    assert offered("transport") == set(get_args(herringbone.Transport))
    assert offered("fold_order") == set(get_args(herringbone.FoldOrder))


def offered(setting: str) -> set[str]:
    """What the engine says a setting may be, without the parameters of algorithms."""
    with pytest.raises(errors.ConfigError) as refused:
        Communicator.connect(rank=0, size=1, store="127.0.0.1:1", **{setting: "nothing"})
    names = re.split(r": use |one of ", re.sub(r"\(.*?\)", "", str(refused.value)))[-1]
    return set(re.split(r", | or ", names))


def test_errors_survive_copying_and_pickling() -> None:
    lost = errors.PeerLostError("ranks 3 and 5 are lost", [3, 5])
    for twin in (copy.copy(lost), pickle.loads(pickle.dumps(lost))):
        assert isinstance(twin, errors.PeerLostError) and isinstance(twin, RuntimeError)
        assert (str(twin), twin.rank, twin.ranks) == ("ranks 3 and 5 are lost", 3, (3, 5))
    differing = pickle.loads(pickle.dumps(errors.MismatchError("they differ", [([0, 2], "a"), ([1], "b")])))
    assert differing.calls == {0: "a", 1: "b", 2: "a"}
    assert all(issubclass(getattr(errors, name), errors.HerringboneError) for name in errors.__all__)


def test_settings_that_can_not_work_are_refused() -> None:
    with pytest.raises(TypeError, match="reducers="):
        herringbone.Options(reducers="10.0.0.1:7070")
    assert "secret" not in repr(herringbone.Options(token="secret"))
    outcome = python("-c", "import herringbone; herringbone.init(rank=5, size=2, store='127.0.0.1:1')")
    assert "ConfigError" in outcome.stderr, outcome.stderr
    outcome = python("-c", "import herringbone; herringbone.init(rank=0)")
    assert "ConfigError" in outcome.stderr and "together" in outcome.stderr, outcome.stderr
    outcome = python("-c", "import herringbone; herringbone.init()", RANK="0", WORLD_SIZE="2")
    assert "ConfigError" in outcome.stderr and "HERRINGBONE_STORE" in outcome.stderr, outcome.stderr


def test_a_process_without_a_job_is_a_job_of_one() -> None:
    pytest.importorskip("numpy")
    code = "import herringbone, numpy; print(herringbone.init().all_reduce(numpy.ones(2, numpy.float32)))"
    outcome = python("-c", code)
    assert outcome.stdout == "[1. 1.]\n", outcome.stderr


FACES = (
    "herringbone",
    "herringbone.errors",
    "herringbone.compare",
    "herringbone.embedding",
    "herringbone.horovod",
    "herringbone.horovod.numpy",
    "herringbone.horovod.torch",
    "herringbone.horovod.torch.elastic",
    "herringbone.kvstore",
    "herringbone.optim",
    "herringbone.rabit",
    "herringbone.torch",
)


def test_a_prompt_is_shown_public_names_only() -> None:
    pytest.importorskip("torch")
    code = f"""import importlib, types
for name in {FACES}:
    module = importlib.import_module(name)
    shown = {{each for each in dir(module) if each[:2] != "__"}}
    listed = set(getattr(module, "__all__", shown)) - {{"__version__"}}
    print(name, sorted(shown ^ listed), [each for each in sorted(shown) if type(getattr(module, each)) is types.ModuleType])"""
    others = {"herringbone": "['errors'] ['errors']", "herringbone.horovod.torch": "[] ['elastic']"}
    assert python("-c", code).stdout.splitlines() == [f"{name} {others.get(name, '[] []')}" for name in FACES]


USED = {
    "herringbone": [
        "Communicator",
        "Elastic",
        "Engine",
        "Options",
        "ParameterServer",
        "Residuals",
        "ShardGroup",
        "Table",
        "Work",
    ],
    "herringbone.embedding": ["TableEmbedding"],
    "herringbone.horovod.numpy": ["DistributedTrainer"],
    "herringbone.kvstore": ["KVStore"],
    "herringbone.optim": ["AsyncSGD", "DiLoCo", "LocalSGD", "PostLocalSGD", "ThresholdSGD"],
    "herringbone.torch": ["Shards"],
}


def test_a_class_says_first_what_it_is_for_and_how_it_is_used() -> None:
    pytest.importorskip("torch")
    for module, names in USED.items():
        for name in names:
            text = inspect.getdoc(getattr(importlib.import_module(module), name)) or ""
            first, example = re.match(r"(.*)::\n\n((?:    .*\n)+)", text).groups()
            assert len(first) < 140, first
            ast.parse(textwrap.dedent(example))


def test_help_begins_with_what_a_program_needs() -> None:
    lines = (herringbone.__doc__ or "").splitlines()
    assert len(lines) < 20
    for wanted in ("init_process_group(", "herringbone.init()", "all_reduce(", "docs/README.md"):
        assert any(wanted in line for line in lines), wanted
