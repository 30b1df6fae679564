"""A rank that the lab's server forks is as a fresh process is; the server forks only while it has one thread."""

from __future__ import annotations

import difflib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

from lab import process
from lab.events import Ranks, Silence
from lab.hosts import Namespaces, NoNamespaces
from lab.job import BegunAfresh, Job, Server, environment, python, server, start
from lab.process import Process, ServerEnded

FACTS = """
'''A docstring.'''
import faulthandler, gc, json, locale, logging, os, resource, signal, sys, threading, warnings
def stream(each):
    inner = getattr(each.buffer, "raw", each.buffer)
    names = ("encoding", "errors", "line_buffering", "write_through", "newlines")
    kinds = [type(each.buffer).__name__, type(inner).__name__, inner.mode, each.mode, each.name, inner.name]
    return [*kinds, each.isatty(), each.seekable(), inner.seekable(), [getattr(each, name) for name in names]]
def descriptors():
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}").partition(":")[0]
        except OSError:
            pass
    return found
def others():
    return sorted(name for name in sys.modules if name.partition(".")[0] not in sys.stdlib_module_names)
facts = {
    "names": sorted(set(globals()) - {"facts"}), "main": [__name__, __file__, __doc__, __package__, __spec__, __cached__],
    "loader": [type(__loader__).__name__, __loader__.path], "annotations": __annotations__, "builtins": __builtins__.__name__,
    "argv": sys.argv, "orig": sys.orig_argv[1:], "path": sys.path, "flags": list(sys.flags), "warnoptions": sys.warnoptions,
    "cwd": os.getcwd(), "environment": dict(os.environ), "umask": os.umask(0o22), "nice": os.nice(0),
    "limits": {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")},
    "handlers": {number: str(signal.getsignal(number)).split(" at ")[0] for number in sorted(signal.valid_signals())},
    "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])), "wakeup": signal.set_wakeup_fd(-1),
    "leads": [os.getpgid(0) == os.getpid(), os.getsid(0) == os.getpid()],
    "descriptors": descriptors(), "streams": [stream(each) for each in (sys.stdin, sys.stdout, sys.stderr)],
    "same": [sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__, sys.excepthook is sys.__excepthook__],
    "filters": [str(each) for each in warnings.filters], "fault": faulthandler.is_enabled(), "gc": [gc.isenabled(), gc.get_threshold()],
    "threads": [len(os.listdir("/proc/self/task")), threading.current_thread().name, threading.active_count()],
    "main thread": [threading.main_thread().native_id == threading.get_native_id() == os.getpid(), sys.getdlopenflags()],
    "clock": 0 <= logging.makeLogRecord({}).relativeCreated < 600_000, "cores": sorted(os.sched_getaffinity(0)),
    "modules": others(), "recursion": sys.getrecursionlimit(), "locale": locale.getlocale(), "switch": sys.getswitchinterval(),
}
print(json.dumps(facts, indent=1))
"""
TORCH = (
    FACTS.split("facts = {")[0]
    + """
import atexit
atexit.register(print, "registered before torch")
facts = {}
for module in ("numpy", "torch", "torch.distributed", "torch._dynamo", "herringbone.torch"):
    before = dict(os.environ)
    __import__(module)
    spec = sys.modules[module].__spec__
    facts[module] = [others(), descriptors(), len(os.listdir("/proc/self/task")), sorted(os.environ.items() - before.items())]
    facts[module] += [spec.name, spec.origin, *(type(each).__name__ for each in (spec.loader, sys.modules[module].__loader__))]
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
print(json.dumps(facts, indent=1))
print(torch.get_num_threads(), torch.get_default_dtype(), dist.get_debug_level(), [str(each) for each in warnings.filters])
import logging
print([type(each).__name__ for each in sys.meta_path], len(logging.root.handlers), logging.root.level)
atexit.register(print, "registered behind torch")
dist.init_process_group("herringbone", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
model = DistributedDataParallel(torch.nn.Linear(2, 1))
model(torch.ones(1, 2)).sum().backward()
print(model.module.weight.grad, dist.get_backend())
print(type(torch.tensor([1.0]).numpy()), torch.ones(3).sum())
dist.destroy_process_group()
"""
)
LEAVING = """
import atexit, multiprocessing, os, sys, threading, time, warnings
def double(number):
    return 2 * number
class Late:
    def __del__(self):
        print("an object of the program ends")
def old():
    warnings.warn("do not", DeprecationWarning, stacklevel=2)
if __name__ == "__main__":
    late = Late()
    atexit.register(print, "first registered")
    atexit.register(print, "last registered")
    old()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(double, [1, 2]))
    child = os.fork()
    if child == 0:
        print("a child")
        sys.exit(3)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), repr(sys.stdin.read()))
    threading.Thread(target=lambda: (time.sleep(0.2), print("a thread ends"))).start()
    sys.stderr.write("an error without an end of line")
    print("the program ends")
"""
RAISING = """
def inner():
    raise KeyError("first")
def outer():
    try:
        inner()
    except KeyError as error:
        raise ValueError("second") from error
outer()
"""
ENDED = "import os, sys, signal\nprint('no end of line', end='')\n"
PROGRAMS = {
    "facts": [FACTS, "an argument", "--more"],
    "torch": [TORCH],
    "leaving": [LEAVING],
    "raising": [RAISING],
    "not Python": ["print('never')\nx = = 1\n"],
    "a status": [ENDED + "sys.exit(7)"],
    "a text as status": [ENDED + "sys.exit('a reason')"],
    "os._exit": [ENDED + "os._exit(9)"],
    "killed": [ENDED + "os.kill(os.getpid(), signal.SIGKILL)"],
    "interrupted": [ENDED + "def wait():\n    signal.raise_signal(signal.SIGINT)\nwait()"],
    "a hook": ["import sys\nsys.excepthook = lambda kind, value, trace: print(kind, value, trace.tb_lineno)\n1 / 0"],
    "C's end": [
        "import ctypes\nlibc = ctypes.CDLL(None)\nlibc.printf(b'C prints')\nlibc.strdup.restype = ctypes.c_void_p\n"
        "last = ctypes.c_void_p(libc.strdup(b' and has the last word'))\nprint('Python prints')\n"
        "libc.__cxa_atexit(ctypes.cast(libc.puts, ctypes.c_void_p), last, None)\nraise SystemExit(5)"
    ],
    "aborted": ["import os; os.abort()"],
}
NAMED = {
    "-u": ["-u", "program.py"],
    "unbuffered": ["program.py"],
    "-c": ["-c", "import sys; print(sys.argv, sys.path[0], sorted(globals()), __spec__, __loader__); nothing", "more"],
    "-m": ["-m", "calendar", "2026", "1"],
    "a module that is not there": ["-m", "no_such_module"],
}


def both(words: list[str], folder: Path, variables: dict[str, str]) -> list[Process]:
    """The process as the server makes it, and a fresh one."""
    return [start(words, variables, str(folder), forked=forked) for forked in (True, False)]


def ended(processes: list[Process]) -> list[tuple[int, str]]:
    with Job() as job:
        job.processes += processes
        return job.finish(120)


def has_ended(process: int) -> bool:
    """Whether it does so within a while."""
    deadline = time.monotonic() + 20
    while Path(f"/proc/{process}/exe").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return not Path(f"/proc/{process}/exe").exists()


@pytest.mark.parametrize("name", [*PROGRAMS, *NAMED])
def test_a_forked_rank_is_as_a_fresh_process_is(name: str, tmp_path: Path) -> None:
    text, *arguments = PROGRAMS.get(name, [FACTS])
    (tmp_path / "program.py").write_text(text)
    words = NAMED.get(name, ["program.py", *arguments])
    old = os.umask(0o27)
    own = {"PYTHONUNBUFFERED": "1"} if name == "unbuffered" else {}
    processes = both(words, tmp_path, environment({"HERRINGBONE_LOG": "warn", "RANK": "0", **own}))
    os.umask(old)
    assert [process.why for process in processes] == [None, None]
    [(status, said), (expected_status, expected)] = ended(processes)
    difference = [line.rstrip() for line in difflib.ndiff(expected.splitlines(), said.splitlines()) if line[0] in "+-"]
    assert not difference and status == expected_status, "\n".join([f"{expected_status} and {status}", *difference])


def test_each_rank_has_numbers_of_its_own(tmp_path: Path) -> None:
    drawing = "random.random(), numpy.random.rand(), current_process().authkey.hex(), torch.rand(1).item(), torch.initial_seed()"
    program = f"import random, numpy, torch; from multiprocessing import current_process; print({drawing})"
    outcomes = ended([start(["-c", program], environment(), str(tmp_path), forked=True) for _ in range(3)])
    drawn = [text.split() for status, text in outcomes if status == 0]
    assert len(drawn) == 3
    [expected] = ended([start(["-c", "import torch; print(torch.initial_seed())"], environment(), str(tmp_path), forked=False)])
    fixed = drawn[0][4] == expected[1].strip()
    for numbers in list(zip(*drawn))[: 3 if fixed else 5]:
        assert len(set(numbers)) == 3, drawn


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OMP_NUM_THREADS", "2"),
        ("TORCH_DISTRIBUTED_DEBUG", "DETAIL"),
        ("TORCH_LOGS", "dynamo"),
        ("PYTHONPATH", "/"),
        ("NEW", "1"),
    ],
)
def test_what_an_import_may_have_read_begins_afresh(name: str, value: str, tmp_path: Path) -> None:
    program = f"import os; print(os.environ[{name!r}])"
    with pytest.warns(BegunAfresh, match=name):
        process = start(["-c", program], environment({name: value}), str(tmp_path), forked=True)
    assert ended([process]) == [(0, f"{value}\n")]


def test_a_program_that_has_a_module_of_torchs_name_begins_afresh(tmp_path: Path) -> None:
    (tmp_path / "sympy.py").write_text("print('mine')")
    (tmp_path / "script.py").write_text("import sympy")
    for words, folder in ((["-c", "import sympy"], str(tmp_path)), ([str(tmp_path / "script.py")], None)):
        with pytest.warns(BegunAfresh, match="its own sympy"):
            process = start(words, environment(), folder, forked=True)
        assert ended([process]) == [(0, "mine\n")]


def test_a_script_that_is_not_there_is_for_python_to_tell(tmp_path: Path) -> None:
    with pytest.warns(BegunAfresh, match="no script"):
        process = start(["none.py"], environment(), str(tmp_path), forked=True)
    [(status, text)] = ended([process])
    assert status == 2 and "can't open file" in text


@pytest.mark.parametrize(
    ("words", "status", "output"),
    [
        (["-c", "import sys; print(sys.argv[1:], sys.stdin.read())", "a word"], 0, "['a word'] given\n"),
        (["-c", "print('told'); raise SystemExit(4)"], 4, "told\n"),
        (["-c", "import os; os.abort()"], -signal.SIGABRT, ""),
        (["-W", "ignore", "-c", "print('afresh')"], 0, "afresh\n"),
        (["-V"], 0, f"Python {sys.version.split()[0]}\n"),
    ],
)
def test_the_python_for_launchers_is_as_python(words: list[str], status: int, output: str, tmp_path: Path) -> None:
    command = [python(), *words]
    done = subprocess.run(command, input="given", capture_output=True, text=True, env=environment(), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (status, output), done.stderr


def test_the_python_for_launchers_passes_signals_on_and_takes_its_process_along() -> None:
    # A shell starts what is in the background with this signal ignored.
    heard = "import os, signal, time\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    program = heard + "try: print(os.getpid(), flush=True); time.sleep(600)\nexcept KeyboardInterrupt: print('saved')"
    for what, said in ((signal.SIGINT, "saved\n"), (signal.SIGKILL, "")):
        with subprocess.Popen([python(), "-c", program], env=environment(), stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            rank = int(process.stdout.readline())
            process.send_signal(what)
            assert process.stdout.read() == said and has_ended(rank)
        assert process.returncode == (0 if said else -what)


@pytest.mark.parametrize(
    "launcher",
    [
        ["herringbone", "launch", "-n", "2", "--"],
        ["herringbone", "horovodrun", "-np", "2"],
        ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"],
    ],
    ids=lambda launcher: launcher[1],
)
def test_what_launchers_set_begins_nothing_afresh(launcher: list[str], tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import os; print(open(f'/proc/{os.getppid()}/cmdline').read())")
    command = [python(), "-m", *launcher, python(), str(tmp_path / "program.py")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment())
    assert done.returncode == 0 and done.stdout.count("from lab.server import main") == 2, done.stdout + done.stderr


@pytest.mark.parametrize("user", [False, True])
def test_a_process_begins_on_a_host(user: bool, tmp_path: Path) -> None:
    """Also on one that a user has made, who has rights there only, and however the process begins."""
    hosts = Namespaces(1)
    hosts.user |= user
    spaces = [f"ns/{space}" for space in ("net", "user")]
    program = f"import os; print([os.readlink(f'/proc/self/{{space}}') for space in {spaces}], os.getcwd())"
    try:
        with hosts:
            there = [os.readlink(f"/proc/{hosts.hosts[0]}/{space}") for space in spaces]
            words = ["-c", program]
            begun = [start(words, environment(), str(tmp_path), hosts.hosts[0], forked) for forked in (True, False)]
            assert ended(begun) == [(0, f"{there} {tmp_path}\n")] * 2
    except NoNamespaces as reason:
        pytest.skip(f"hosts are network namespaces: {reason}")


def test_the_server_forks_with_one_thread_only() -> None:
    """And says so if it has more: this one is made to."""
    thread = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"
    with (
        Server(f"from lab import shelf; shelf.STAGES = ('numpy',); {thread}") as crowded,
        pytest.warns(BegunAfresh, match="the server has 2 threads, whose locks a fork would keep for ever"),
    ):
        process = start(["-c", "pass"], environment(), forked=True, place=crowded.place)
    ended([process])
    ours = start(["-c", "pass"], environment(), forked=True)
    assert ours.why is None
    ended([ours])


def test_a_server_that_is_killed_takes_its_ranks_along_and_the_test_is_told() -> None:
    program = ["-c", "import time; print('begun', flush=True); time.sleep(600)"]
    with Server("from lab import shelf; shelf.STAGES = ('numpy',)") as killed, Job() as job:
        for _ in range(2):
            job.processes.append(start(program, environment(), forked=True, place=killed.place))
            assert job.processes[-1].stdout.readline() == "begun\n"
        killed.kill()
        with pytest.raises(ServerEnded, match=r"the server of the lab has ended, and process \d+ with it"):
            job.finish(60)
        assert all(has_ended(process.pid) for process in job.processes)
        with pytest.raises(ServerEnded, match="no rank can begin: the server of the lab has ended"):
            start(program, environment(), forked=True, place=killed.place)


def test_whoever_prints_without_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MOST_BYTES", 1 << 20)
    for forked in (True, False):
        with Job() as job:
            rank = job.start("-c", "while True: print('more')", forked=forked)
            with pytest.raises(OverflowError, match="has printed more than 1048576 bytes"):
                job.finish()
        assert has_ended(rank.pid)


def test_a_request_may_be_long(tmp_path: Path) -> None:
    many = {f"HERRINGBONE_{number}": "x" * 1000 for number in range(1000)}
    program = "import os; print(sum(name.startswith('HERRINGBONE_') and name[12:].isdigit() for name in os.environ))"
    processes = both(["-c", program], tmp_path, environment(many))
    assert processes[0].why is None and ended(processes) == [(0, "1000\n")] * 2


def test_nothing_waits_for_what_a_rank_has_left_behind() -> None:
    """A child that holds the output, in the rank's session."""
    program = "import subprocess; print(subprocess.Popen(['sleep', '600']).pid)"
    for forked in (True, False):
        with Job() as job:
            job.start("-c", program, forked=forked)
            began = time.monotonic()
            [(status, text)] = job.finish(2)
            assert status == 0 and "left behind" in text and time.monotonic() - began < 60
            assert has_ended(int(text.splitlines()[0]))


def test_the_first_rank_that_fails_ends_the_others() -> None:
    program = "import os, time\nif os.environ['RANK'] == '1': raise SystemExit(5)\ntime.sleep(600)"
    with Job() as job:
        for rank in "012":
            job.start("-c", program, forked=True, RANK=rank)
        assert [status for status, _ in job.finish(60, together=True)] == [-signal.SIGTERM, 5, -signal.SIGTERM]
        assert "rank 1 ended with 5\n" in job.lines


def test_whoever_ends_while_asking_harms_nobody_else() -> None:
    for text in (b"", b"\0", (1000).to_bytes(4, "big") + b"{", (9).to_bytes(4, "big") + b"no words "):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(server())
            connection.sendall(text)
    [(status, output)] = ended([start(["-c", "print('served')"], environment(), forked=True)])
    assert (status, output) == (0, "served\n")


def test_ranks_say_what_happens_to_them(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    program = f"import os, sys, time\nsys.path.append({str(root)!r})\nfrom lab.events import say\n"
    program += "say('begun', number=int(os.environ['RANK']))\nprint('a line', file=sys.stderr)\nprint('half a line', end='', flush=True)\n"
    program += "say('there')\nif os.environ['RANK'] == '0': raise SystemExit(3)\ntime.sleep(600)"
    with Ranks(tmp_path / "log") as ranks:
        first, second = (ranks.start("-c", program, RANK=rank) for rank in "01")
        assert [rank.wait("begun")["number"] for rank in (first, second)] == [0, 1]
        second.wait("there")
        with pytest.raises(Silence, match="said within 0 s none of more"):
            second.wait("more", seconds=0)
        with pytest.raises(Silence, match="ended before it said any of more: .*'there'"):
            first.wait("more")
        assert ranks.finish([first]) == [3] and ranks.finish([second], seconds=0) == [None]
        assert (first.lines, second.status) == (["half a line"], -signal.SIGKILL)
        assert ranks.finish([ranks.start("-c", "pass")]) == [0]
    assert (tmp_path / "log").read_text() == "a line\n" * 2


def test_lines_of_ranks_stay_whole() -> None:
    program = "for number in range(300): print('a' * 50, number)"
    with Job() as job:
        for _ in range(2):
            job.start("-c", program, forked=True)
        job.finish(60)
        assert len(job.lines) == 600 and all(line.startswith("a" * 50) and line.count(" ") == 1 for line in job.lines)


def test_ranks_end_with_the_process_that_has_asked_for_them() -> None:
    program = f"""
import os, sys
sys.path.append({str(Path(__file__).resolve().parents[2])!r})
from lab.job import environment, start
print(start(["-c", "import time; time.sleep(600)"], environment(), forked=True).pid, flush=True)
os._exit(0)
"""
    with Job() as job:
        job.start("-c", program, LAB_SERVER=server())
        [(status, text)] = job.finish(60)
    assert status == 0 and has_ended(int(text))


assert sys.platform == "linux", "the lab forks, and asks /proc"
