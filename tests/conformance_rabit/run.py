"""RABIT's own programs over libherringbone.so; `make conformance-rabit RABIT=folder` calls it. The folder has RABIT's sources.

* Its Python module, as it is, loads the library as its own. A program of it (worker.py) runs with three ranks, undisturbed and with
  ranks that are killed at some calls: the models have the same bits, and the other processes live on.
* Its guide and its tests in C++ are compiled with `rabit/rabit.h` exchanged for `herringbone/rabit.h`, and run with three ranks.

The last line is the sum.
"""

import argparse
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(ROOT), str(ROOT / "bench")]

from lab.job import environment

WORKER = pathlib.Path(__file__).with_name("worker.py")
DEBUG = ROOT / "target" / "debug"
BINARY, PREFIX = DEBUG / "herringbone", DEBUG / "capi"
RANKS, LIMIT_SECONDS = 3, 60
KILLS = [(1, 0, 0), (2, 1, 2), (0, 2, 1), (1, 3, 3)]
"""Which rank ends in which version before which of its calls; the last one is the checkpoint."""
PROGRAMS = {
    "guide/basic.cc": [],
    "guide/lazy_allreduce.cc": [],
    "guide/broadcast.cc": [],
    "test/model_recover.cc": ["10000", "rabit_local_replica=1"],
    "test/lazy_recover.cc": ["10000", "rabit_local_replica=1"],
    "test/local_recover.cc": ["10000", "rabit_local_replica=1"],
}
"""In RABIT's sources, with their arguments."""


def launched(command):
    """What a job prints, which ends well."""
    job = [BINARY, "launch", "-n", str(RANKS), "--max-attempts", "5", "--", *command]
    settings = environment({"LD_LIBRARY_PATH": f"{PREFIX}/lib"})
    done = subprocess.run(job, env=settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_SECONDS)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def said(text, word):
    """What each rank says in lines that begin with the word: a list of words for each line."""
    found = {rank: [] for rank in range(RANKS)}
    for line in text.splitlines():
        rank, _, words = line.removeprefix("[rank ").partition("] ")
        if rank.isdigit() and words.split(" ")[0] == word:
            found[int(rank)].append(words.split()[1:])
    return found


def module(folder, kill=()):
    """Runs worker.py: how often each rank prepared an input, and what the models are. Only the killed one starts twice."""
    text = launched([sys.executable, WORKER, folder, *map(str, kill)])
    starts, ends = said(text, "start"), said(text, "end")
    assert [len(ends[rank]) for rank in ends] == [1] * RANKS, text
    for rank, lines in starts.items():
        assert len(lines) == (2 if kill and rank == kill[0] else 1), text
        assert lines[-1][0] == ends[rank][0][0], text
    return [int(ends[rank][0][1]) for rank in ends], [ends[rank][0][2] for rank in ends]


def of_module(sources, folder):
    """The checks of RABIT's module, each a line of what it found."""
    shutil.copyfile(sources / "python" / "rabit.py", folder / "rabit.py")
    (folder / "librabit.so").symlink_to(PREFIX / "lib" / "libherringbone.so")
    calls, models = module(folder)
    yield f"python/rabit.py, undisturbed: {calls} inputs prepared"
    for kill in KILLS:
        prepared, found = module(folder, kill)
        assert found == models, f"after the loss of {kill} the models are {found} and not {models}"
        others = [prepared[rank] for rank in range(RANKS) if rank != kill[0]]
        assert others == [calls[0]] * (RANKS - 1), f"the ranks that live prepared {others} inputs and not {calls[0]}"
        # The new process prepares what nobody has called yet, in the version of the loss and those after it.
        left = calls[0] * (4 - kill[1]) // 4 - min(kill[2], 3)
        assert prepared[kill[0]] == left, f"{prepared} after the loss of {kill}"
        yield f"python/rabit.py, rank {kill[0]} killed in version {kill[1]} before call {kill[2]}: {prepared} inputs prepared"


def of_programs(sources, folder):
    """The same of its programs in C++."""
    (folder / "rabit").mkdir()
    (folder / "rabit" / "rabit.h").write_text("#include <herringbone/rabit.h>\n")
    for name, arguments in PROGRAMS.items():
        program = folder / pathlib.Path(name).stem
        includes = [f"-I{folder}", f"-I{PREFIX}/include", f"-L{PREFIX}/lib", "-lherringbone"]
        # Not -Werror: the programs are RABIT's.
        subprocess.run(["c++", "-std=c++11", "-w", "-o", program, sources / name, *includes], check=True)
        launched([program, *arguments])
        yield f"{name}: {RANKS} ranks ended with 0"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sources", nargs="?", type=pathlib.Path, help="a folder with RABIT's sources, as of dmlc/rabit")
    options = parser.parse_args()
    if options.sources is None or not (options.sources / "python" / "rabit.py").exists():
        print(f"not run: {options.sources or 'no folder'} has no RABIT's sources: RABIT=folder says where they are")
        sys.exit(2)
    passed = 0
    with tempfile.TemporaryDirectory() as folder:
        for checks in (of_module, of_programs):
            if checks is of_programs and shutil.which("c++") is None:
                print("no c++ here: RABIT's programs in C++ were not run")
                continue
            own = pathlib.Path(folder) / checks.__name__
            own.mkdir()
            for line in checks(options.sources.resolve(), own):
                print(f"ok: {line}", flush=True)
                passed += 1
    print(f"{passed} passed, 0 failed")


if __name__ == "__main__":
    main()
