"""Every code block of the Markdown files works, and every file that they name is there.

* `python`: runs with two workers on this Python, as torchrun would start them if it uses torch: forked from a process that has
  imported it. A program of a framework that it lacks is skipped here: `make frameworks` runs it.
* `c` and `cpp`: compiled as C11 or C++17 with all warnings as errors, over the library as `make capi` installs it, and run as two
  ranks.
* `rust`: a doctest of crates/cli, which includes the file; here it is only checked that it does.
* `sh`: `herringbone` commands run, one after the other in one folder, and `train.py` there is the page's last `python` block
  before, `program.c` its last `c` block, `program.cc` its last `cpp` block. What the test suite runs itself (make, cargo, pytest, our scripts) and what needs a cluster is checked to exist.
* `text`: output or a drawing. Nothing else.
"""

import concurrent.futures
import importlib.util
import itertools
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(ROOT), str(ROOT / "bench")]

from ports import free_port

from lab.job import PATIENCE_SECONDS, Job, environment, python

BINARY = ROOT / "target" / "debug" / "herringbone"
LIBRARY = ROOT / "target" / "debug" / "capi"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
SOURCE = re.compile(r"`((?:bench|crates|demo|deploy|examples|python|testdata|tests|tools)/[\w./-]*)`")
PLACES = ("*.md", "docs/**/*.md", "examples/*.md", "python/*.md")
WITH_BLOCKS = sorted(path for place in PLACES for path in ROOT.glob(place))
PAGES = sorted([*WITH_BLOCKS, *ROOT.glob("record/*.md")])
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
PROGRAMS = {"python": "train.py", "c": "program.c", "cpp": "program.cc"}
"""Languages, and the file in which later blocks find a page's last program."""
WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Werror")
FRAMEWORKS = ("accelerate", "lightning", "torchft", "transformers")


def blocks():
    """(file, language, text, the programs before it by their files) of every block."""
    for path in WITH_BLOCKS:
        name, programs = str(path.relative_to(ROOT)), {}
        for number, match in enumerate(BLOCK.finditer(path.read_text()), 1):
            label = f"{name.removesuffix('.md')}-{number}-{match[1] or 'none'}"
            yield pytest.param(name, *match.groups(), programs, id=label)
            if match[1] in PROGRAMS:
                programs = programs | {PROGRAMS[match[1]]: match[2]}


@pytest.mark.parametrize("name, language, text, programs", list(blocks()))
def test_block(name, language, text, programs, tmp_path):
    run = {"python": python_block, "rust": rust_block, "sh": shell_block, "text": lambda *_: None}
    run |= {"c": compiled_block("cc", "c11", "program.c"), "cpp": compiled_block("c++", "c++17", "program.cc")}
    assert language in run, f"{name}: a block in {language or 'no language'}: write one of {', '.join(run)}"
    for file, program in programs.items():
        (tmp_path / file).write_text(program)
    run[language](name, text, tmp_path)


def test_every_block_is_found():
    for path in WITH_BLOCKS:
        text = path.read_text()
        fences = re.findall(r"^```", text, re.MULTILINE)
        assert len(fences) == 2 * len(BLOCK.findall(text)), f"{path}: a fence that opens no block"


def python_block(_, text, folder):
    for framework in FRAMEWORKS:
        imported = re.search(rf"^(?:from|import) {framework}\b", text, re.MULTILINE)
        if imported and importlib.util.find_spec(framework) is None:
            pytest.skip(f"{framework} is not installed here: `make frameworks` runs this block")
    script = folder / "train.py"
    script.write_text(text)
    if "torch" not in text:
        servers = ["--tables", "2"] if "ParameterServer" in text or "dist_async" in text else []
        succeed([str(BINARY), "launch", "-n", "2", *servers, "--", sys.executable, str(script)], folder)
        return
    with Job() as job:
        job.torchrun(str(script), 2, folder=str(folder))
        statuses = [status for status, _ in job.finish(PATIENCE_SECONDS, together=True)]
    assert statuses == [0, 0], f"{text}\nended with {statuses}:\n{''.join(job.lines)}"


def library_settings():
    """What tells pkg-config and the loader where the library for C is."""
    return {"PKG_CONFIG_PATH": f"{LIBRARY}/lib/pkgconfig", "LD_LIBRARY_PATH": f"{LIBRARY}/lib"}


def compiled_block(compiler, standard, file):
    """What checks a block of a language that this compiler compiles."""

    def run(_, text, folder):
        (folder / file).write_text(text)
        flags = [f"-I{LIBRARY}/include", f"-L{LIBRARY}/lib", "-lherringbone"]
        succeed([compiler, f"-std={standard}", *WARNINGS, file, "-o", "program", *flags], folder)
        succeed([str(BINARY), "launch", "-n", "2", "--", "./program"], folder, library_settings())

    return run


def rust_block(name, _, __):
    library = (ROOT / "crates" / "cli" / "src" / "lib.rs").read_text()
    assert f'include_str!("../../../{name}")' in library, f"crates/cli/src/lib.rs does not test the Rust of {name}"


def shell_block(name, text, folder):
    roles = []
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        before = list(itertools.takewhile(re.compile(r"[A-Z_]+=").match, words))
        settings, words = dict(word.split("=", 1) for word in before), words[len(before) :]
        if words == ["python", "train.py"] and "DMLC_ROLE" in settings:
            roles.append(settings)
        elif words:
            command(name, words, settings, folder)
    if roles:
        as_started_by_ps_lite(roles, folder)


def c_command(name, words, settings, folder):
    """The same for commands that make and start a program of C or C++; whether this is one."""
    match words:
        case ["export", *variables] if any(variable.startswith("NCCL_") for variable in variables):
            has_nccl_plugin(name, dict(variable.split("=", 1) for variable in variables))
        case ["export", *variables]:
            # Blocks get those that name the library of the tests.
            given = {name: value for name, _, value in (variable.partition("=") for variable in variables)}
            ends = {name: value.removeprefix(str(LIBRARY)) for name, value in library_settings().items()}
            assert given.keys() == ends.keys() and all(given[name].endswith(end) for name, end in ends.items()), (
                f"{name}: {words}"
            )
        case ["sudo", "python3", script, *rest]:
            takes(name, script, rest)
        case ["sudo", "ldconfig"]:
            pass  # it needs to be root
        case ["cc" | "c++", *_]:
            if shutil.which("pkg-config") is None:
                pytest.skip("pkg-config is not here")
            succeed(["sh", "-c", " ".join(words)], folder, settings | library_settings())
        case ["mpicxx", *_]:
            if shutil.which("mpicxx") is None or shutil.which("pkg-config") is None:
                pytest.skip("an MPI or pkg-config is not here")
            succeed(["sh", "-c", " ".join(words)], folder, settings | library_settings())
        case ["mpirun", "-n", _, "./program"]:
            # As root, and more ranks than there are cores.
            asked = {
                "OMPI_ALLOW_RUN_AS_ROOT": "1",
                "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                "OMPI_MCA_rmaps_base_oversubscribe": "1",
            }
            succeed(words, folder, settings | asked)
        case ["herringbone", "launch", *rest, "./program"]:
            assert (folder / "program").exists(), f"{name}: what makes ./program?"
            succeed([str(BINARY), "launch", *rest, "./program"], folder, settings | library_settings())
        case _:
            return False
    return True


def has_nccl_plugin(name, variables):
    """Checks that these variables lead NCCL to the plug-in that `make nccl-plugin` installs: by its file, and by its name in the tables."""
    file = f"/lib/libnccl-net-{variables['NCCL_NET_PLUGIN']}.so"
    tables = (ROOT / "crates" / "nccl-plugin" / "src" / "exports.rs").read_text()
    assert file in (ROOT / "Makefile").read_text(), f"{name}: make installs no {file}"
    assert f'b"{variables["NCCL_NET"]}\\0"' in tables, f"{name}: no table is called {variables['NCCL_NET']}"
    assert variables["LD_LIBRARY_PATH"].endswith("/lib"), f"{name}: NCCL does not find {file}"


def command(name, words, settings, folder):
    """Runs one command of a shell block, or checks that what it names is there."""
    if c_command(name, words, settings, folder):
        return
    match words:
        case ["make", *targets]:
            known = re.findall(r"^([\w-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)
            targets = {target for target in targets if "=" not in target}
            assert targets <= set(known), f"{name}: make has no {targets}"
        case ["cargo", "build" | "test" | "clippy" | "doc", *rest]:
            packages = rest[1:2] if rest[:1] == ["-p"] else []
            folders = [package.removeprefix("herringbone-") for package in packages]
            assert all((ROOT / "crates" / folder).is_dir() for folder in folders), f"{name}: {words}"
        case ["target/tests/bin/python", "-m", "pytest", *paths]:
            assert all((ROOT / path).exists() for path in paths), f"{name}: {words}"
        case [".venv/bin/python", script, *rest]:
            takes(name, script, rest)
        case ["echo", *line, ">", file]:
            (folder / file).write_text(" ".join(line) + "\n")
        case ["herringbone", "serve", *rest]:
            # At a free port: reducers of other programs may be at the one that a page names.
            listen = [re.sub(r":\d+$", ":0", word) if before == "--listen" else word for before, word in zip(["", *rest], rest)]
            serve([str(BINARY), "serve", *listen], settings)
        case ["herringbone", "launch", *_] if "train.py" in words and not (folder / "train.py").exists():
            raise AssertionError(f"{name}: which train.py does {shlex.join(words)} run? Show it in a block before")
        case ["herringbone", "launch", *_, program] if program.startswith("target/debug/examples/"):
            example = pathlib.Path(program).name
            assert (ROOT / f"crates/herringbone/examples/{example}.rs").exists(), f"{name}: there is no {example}"
        case ["herringbone", "status", _, *rest]:
            status(rest, settings)
        case ["herringbone", "horovodrun", *rest]:
            own = {word: str(ROOT / word) for word in rest if word.startswith("examples/")} | {"python": python()}
            launcher = [sys.executable, "-m", "herringbone", "horovodrun"]
            succeed([*launcher, *(own.get(word, word) for word in rest)], folder, settings)
        case ["herringbone", "compare", *rest]:
            # The binary would start the first python3 of the path.
            succeed([sys.executable, "-m", "herringbone", "compare", *rest], folder, settings)
        case ["herringbone", *rest]:
            rest, target = (rest[:-2], rest[-1]) if rest[-2:-1] == [">"] else (rest, None)
            files = [word for word in (*rest, *settings.values()) if word.startswith(("examples/", "testdata/"))]
            own = {word: str(ROOT / word) for word in files}
            settings = {setting: own.get(value, value) for setting, value in settings.items()}
            own |= {"python": python(), "herringbone": str(BINARY)}
            printed = succeed([str(BINARY), *(own.get(word, word) for word in rest)], folder, settings)
            if target:
                (folder / target).write_text(printed)
        case ["torchrun", *_] if examples := [word for word in words if word.startswith("examples/")]:
            takes(name, examples[0], words[words.index(examples[0]) + 1 :])
        case ["torchrun", "--nproc-per-node=4", "train.py"] if without_torch(folder / "train.py"):
            succeed([python(), *TORCHRUN, "train.py"], folder, settings)
        case ["torchrun", *rest]:
            assert "train.py" in rest, f"{name}: what would run {words}?"
        case ["mpirun" | "srun" as launcher, "-n", _, "python", "train.py"]:
            as_started_by(launcher, [sys.executable, "train.py"], folder)
        case ["mpirun" | "srun" as launcher, "-n", _, "sh", "-c", script]:
            assert " exec python train.py" in script, f"{name}: {script}"
            script = script.replace("exec python", f"exec {shlex.quote(python())}")
            as_started_by(launcher, ["sh", "-c", script], folder, settings | {"MASTER_PORT": str(free_port())})
        case ["mpirun" | "srun", *_, "python", "train.py"]:
            pass  # they need several machines
        case ["kubectl", "apply", "-f", path] | ["sbatch", path] | ["docker", "build", "-f", path, *_]:
            assert (ROOT / path).exists(), f"{name}: there is no {path}"
        case ["sudo", "cp", path, _] | ["gcloud", "ai", "custom-jobs", "create", *_, path]:
            assert (ROOT / path.removeprefix("--config=")).exists(), f"{name}: there is no {path}"
        case ["kubectl", "create", "secret", "generic", *_] | ["sudo", "systemctl", *_]:
            pass  # they need a cluster, or to be root
        case _:
            raise AssertionError(f"{name}: nobody checks `{shlex.join(words)}`")


def without_torch(script):
    return script.exists() and "torch" not in script.read_text()


def as_started_by(launcher, words, folder, settings=None):
    """Runs what a launcher of MPI would start, as two ranks with its variables; `make launchers` takes the launchers themselves."""
    common = {
        "mpirun": {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": f"docs-{os.getpid()}"},
        "srun": {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0", "SLURM_NNODES": "1", "SLURM_STEP_NUM_TASKS": "2"},
    }[launcher]
    names = {"mpirun": ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"], "srun": ["SLURM_PROCID", "SLURM_LOCALID"]}
    places = [common | {name: str(rank) for name in names[launcher]} for rank in range(2)]
    with concurrent.futures.ThreadPoolExecutor() as threads:
        list(threads.map(lambda place: succeed(words, folder, (settings or {}) | place), places))


def as_started_by_ps_lite(roles, folder):
    """Runs the lines of a job together, at a port of ours."""
    port = {"DMLC_PS_ROOT_PORT": str(free_port())}
    with concurrent.futures.ThreadPoolExecutor(len(roles)) as threads:
        list(threads.map(lambda role: succeed([sys.executable, "train.py"], folder, role | port), roles))


def takes(name, script, words):
    """Checks that a script of ours is there and takes these options."""
    shown = subprocess.run([sys.executable, ROOT / script, "--help"], capture_output=True, text=True)
    unknown = [word for word in words if word.startswith("--") and word not in shown.stdout]
    assert shown.returncode == 0 and not unknown, f"{name}: {script}: {unknown} {shown.stderr}"


def serve(arguments, settings):
    """Starts a reducer, and ends it once it says that it listens."""
    with subprocess.Popen(arguments, env=environment(settings), stdout=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline()
        process.terminate()
    assert "listening" in line and process.returncode == 0, f"{shlex.join(arguments)}: {line}"


def status(options, settings):
    """Asks a reducer that is started for it."""
    serving = [str(BINARY), "serve", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(serving, env=environment(settings), stdout=subprocess.PIPE, text=True) as process:
        address = process.stdout.readline().split()[-1]
        try:
            succeed([str(BINARY), "status", address, *options], None, settings)
        finally:
            process.terminate()


def succeed(arguments, folder, settings=None):
    """Runs a command to its end, with nothing but its settings, and returns what it printed."""
    done = subprocess.run(
        arguments,
        cwd=folder,
        env=environment(settings or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{shlex.join(arguments)} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


def missing(page, text):
    """What `text`, which lies at `page`, links to or names as a source file, and is not there."""
    links = [link for link in LINK.findall(text) if not re.match(r"https?:|mailto:|#", link)]
    sources = [] if page.parent.name == "record" else SOURCE.findall(text)
    targets = [(link, page.parent / link.split("#")[0]) for link in links]
    targets += [(source, ROOT / source) for source in sources]
    return [name for name, path in targets if not path.exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_names_is_there(page):
    assert missing(page, page.read_text()) == []


def test_what_is_missing_is_found():
    text = "[a](no.md), [b](no.svg#part) and `crates/no.rs`, not [c](https://example.org) or [d](README.md#more)"
    assert missing(ROOT / "CHANGELOG.md", text) == ["no.md", "no.svg#part", "crates/no.rs"]
    assert missing(ROOT / "record" / "README.md", "`crates/no.rs`, then [a](../no.md)") == ["../no.md"]


def test_the_table_of_algorithms_is_what_the_schedules_say():
    """The figures of `herringbone verify --ranks 8`, so that the table cannot age."""
    shown = subprocess.run([BINARY, "verify", "--ranks", "8", "--json"], stdout=subprocess.PIPE, check=True)
    rows = {}
    for line in shown.stdout.splitlines():
        row = json.loads(line)
        whole = row["reducers"] or "trees" in row["algorithm"]
        name = row["algorithm"] if whole else row["algorithm"].split("(")[0]
        workers = row["peers"] - row["reducers"]
        peers = ", ".join(([str(workers)] if workers else []) + (["reducers"] if row["reducers"] else []))
        same_bits = "yes" if row["order"] == "fixed" else "no"
        rows[name] = [same_bits, str(row["rounds"]), f"{row['buffers_sent']:.3f} K", peers]
    text = (ROOT / "docs" / "how-it-works.md").read_text().split("`herringbone verify --ranks 8 --all`")[1]
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    table = table[2 : 2 + len(rows)]
    assert {name.split()[0]: cells for name, *cells in table} == rows
