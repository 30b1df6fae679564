"""The rigs as they are installed: which programs they can run, and one interleaved run of them.

The rigs are a folder with `bench.py` (see its README); the other libraries ("peers") and the program that measures the
machine's limits are where its `setup_peers.sh` puts them: $PEERS, by default ~/.cache/herringbone-bench.
"""

import contextlib
import fcntl
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading

import machine

ROOT = machine.ROOT
TOKEN = "rigs-of-one-machine"
REDUCER_PORT = 7070
LOCK = pathlib.Path(tempfile.gettempdir()) / "herringbone-bench.lock"
POLL_SECONDS = 0.1

# What each peer needs below $PEERS, and the packages whose releases a record names. Gloo comes with our own torch.
PEERS = {
    "gloo": ([], ["torch"]),
    "openmpi": (["bench_openmpi", "openmpi/bin/mpirun"], ["openmpi"]),
    "mpich": (["bench_mpich", "mpich/bin/mpiexec.hydra"], ["mpich"]),
    "impi": (["bench_impi", "impi/bin/mpiexec.hydra"], ["impi-rt"]),
    "oneccl": (["bench_oneccl"], ["oneccl"]),
    "xgboost": (["xgb/bin/python"], ["xgboost"]),
}
FLOOR = re.compile(r"all-reduce floor, N=(\d+), ([\d.]+) MiB, \d+ cores +(\S+) +(\S+) +(\S+) +us")


class RigsFailed(Exception):
    """The rigs cannot do this; the text says why and what to do."""


class Rigs:
    """The rigs of one folder, our binary, and what of the peers is there."""

    def __init__(self, folder, binary):
        self.folder, self.binary = pathlib.Path(folder).resolve(), pathlib.Path(binary).resolve()
        default = pathlib.Path.home() / ".cache" / "herringbone-bench"
        self.peers_folder = pathlib.Path(os.environ.get("PEERS", default))
        if not (self.folder / "bench.py").exists():
            raise RigsFailed(f"{folder} has no bench.py; RIGS has to name the folder of the rigs")
        if not self.binary.exists():
            raise RigsFailed(f"{binary} is missing; `make program` builds it")

    def peers(self, wanted):
        """Of the peers `wanted`, those that can run, and a sentence for each that cannot."""
        runnable, missing = [], []
        for name in wanted:
            if name not in PEERS:
                raise RigsFailed(f"there is no peer {name}; choose from {', '.join(PEERS)}")
            lacks = [path for path in PEERS[name][0] if not (self.peers_folder / path).exists()]
            if name == "gloo" and not has_torch():
                lacks = ["torch"]
            if lacks:
                missing.append(f"{name} is left out: {lacks[0]} is not installed; run setup_peers.sh of the rigs")
            else:
                runnable.append(name)
        return runnable, missing

    def releases(self, peers):
        """Package and release of each peer."""
        found = {}
        for name in peers:
            folder = {"xgboost": "xgb"}.get(name, name)
            environment = sys.prefix if name == "gloo" else self.peers_folder / folder
            found |= machine.versions(environment, PEERS[name][1])
        return found

    def why_no_cluster(self):
        """What keeps the cluster rig from running, or None."""
        if os.geteuid() != 0:
            return "network namespaces need root: run `make bench` as root"
        tools = [tool for tool in ("ip", "tc", "unshare") if shutil.which(tool) is None]
        return f"{tools[0]} is not installed" if tools else None

    def floor(self, repetitions):
        """The least seconds of an all-reduce between processes that map all buffers: {N: {bytes: seconds}}."""
        program = self.peers_folder / "limits"
        if not program.exists():
            raise RigsFailed("the floor is not measured: build it with `make limits` in the folder of the rigs")
        with open(LOCK, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            command = [program, "floor", str(repetitions)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise RigsFailed(f"the floor is not measured: limits ended with exit code {done.returncode}")
        return floor_of(done.stdout)

    def ours(self, panel):
        """--add and --server for what is ours in a panel."""
        token = f"env HERRINGBONE_TOKEN={TOKEN}"
        alone = f"{token} BENCH_EXTRA_HOSTS=" if panel["reducers"] else token
        binary = shlex.quote(str(self.binary))
        add = {"herringbone": f"{alone} {binary} bench --rig"}
        if has_torch():
            script = shlex.quote(str(ROOT / "bench" / "torch_rig.py"))
            add["herringbone-torch"] = f"{alone} {shlex.quote(sys.executable)} {script}"
        server = {}
        if panel["reducers"]:
            add["herringbone-reducers"] = f"{token} {binary} bench --rig"
            listen = f"exec {binary} serve --listen $BIND_ADDR:{REDUCER_PORT}"
            server["herringbone-reducers"] = f"{token} sh -c {shlex.quote(listen)}"
        return add, server

    def command(self, panel, raw):
        """The command of a panel's run; `raw` is where it leaves its figures."""
        add, server = self.ours(panel)
        sizes = ",".join(map(str, panel["sizes"]))
        command = [sys.executable, str(self.folder / "bench.py"), panel["rig"], "--n", str(panel["n"])]
        command += ["--sizes", sizes, "--peers", ",".join(panel["peers"]), "--rounds", str(panel["rounds"])]
        command += ["--budget", str(panel["budget"]), "--timeout", str(panel["timeout"])]
        if panel["rig"] == "cluster":
            command += ["--rate", str(panel["rate"]), "--extra", str(panel["reducers"])]
        for option, programs in (("--add", add), ("--server", server)):
            for name, program in programs.items():
                command += [option, f"{name}: {program}"]
        return [*command, "--json", str(raw), "--lock", str(LOCK)]

    def shown(self, panel):
        """The command as a record shows it: without this machine's paths."""
        words = self.command(panel, "raw.json")[2:-4]
        text = " ".join(["$RIGS/bench.py", *map(shlex.quote, words)])
        text = text.replace(sys.executable, ".venv/bin/python").replace(str(self.binary), "target/release/herringbone")
        return text.replace(f"{ROOT}/", "")

    def run(self, panel, progress):
        """Runs a panel; returns what bench.py recorded, and what it complained about."""
        with tempfile.TemporaryDirectory(prefix="herringbone-rigs-") as folder:
            raw, places = pathlib.Path(folder) / "raw.json", pathlib.Path(folder) / "places"
            places.mkdir()
            environment = os.environ | {"TMPDIR": str(places), "PEERS": str(self.peers_folder)}
            environment.setdefault("TORCH_PY", sys.executable)
            process = subprocess.Popen(
                self.command(panel, raw),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            complaints = []
            reader = threading.Thread(target=lambda: complaints.extend(process.stderr), daemon=True)
            reader.start()
            try:
                while watch(process):
                    progress.look(places)
            finally:
                self.clear(process, places, panel)
            progress.look(places)
            reader.join()
            if process.returncode != 0:
                raise RigsFailed(f"bench.py ended with exit code {process.returncode}: {''.join(complaints)[-600:]}")
            return json.loads(raw.read_text()), [line.strip() for line in complaints if line.startswith("#")]

    def clear(self, process, places, panel):
        """Unless all went well: ends bench.py, what it started (in sessions of their own), and the namespaces."""
        if process.poll() == 0:
            return
        process.kill()
        process.wait()
        end_programs_of(places)
        if panel["rig"] == "cluster":
            subprocess.run([self.folder / "cluster.sh", "down"], check=False)


def watch(process):
    """Waits a moment; returns whether the process still runs."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(POLL_SECONDS)
    return process.poll() is None


def end_programs_of(places):
    """Kills the bench programs whose BENCH_OUT lies in `places`, a folder that only one run uses."""
    mark = f"BENCH_OUT={places}/".encode()
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(entry.startswith(mark) for entry in (folder / "environ").read_bytes().split(b"\0")):
                os.kill(int(folder.name), signal.SIGKILL)


def floor_of(text):
    """What `limits floor` printed, as {N: {bytes: least seconds}}; keys are text, as JSON has them."""
    floor = {}
    for ranks, mebibytes, _, least, _ in FLOOR.findall(text):
        floor.setdefault(ranks, {})[str(int(float(mebibytes) * 2**20))] = float(least) * 1e-6
    return floor


def has_torch():
    """Whether this Python can run the programs that need torch and the wheel."""
    from importlib.util import find_spec

    return find_spec("torch") is not None and find_spec("herringbone") is not None
