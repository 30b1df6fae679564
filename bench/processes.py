"""The processes of a job: on this host, or one per host of the rigs' cluster. None stays behind.

The demo starts its processes with this, too. Hosts that are namespaces are those of the lab.
"""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))

from lab.hosts import Namespaces, NoNamespaces
from ports import free_port

__all__ = ["Cluster", "Here", "JobFailed", "Namespaces", "NoNamespaces", "Processes", "Reducer", "signals_held"]

POLL_SECONDS = 0.1
PATIENCE_SECONDS = 10


class JobFailed(Exception):
    """The job cannot continue; the text gives the reason."""


class Here:
    """All processes on this host, over its loopback interface."""

    interface = "lo"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def address(self, _):
        """The address of a process's host."""
        return "127.0.0.1"

    def command(self, _, words):
        """The command that runs `words` on a process's host."""
        return words


class Cluster:
    """Network namespaces as hosts, one for each process; every link limited to `rate` Mbit/s both ways."""

    interface = "eth0"

    def __init__(self, rigs, hosts, rate):
        self.rigs, self.hosts, self.rate = pathlib.Path(rigs).resolve(), hosts, rate
        if os.geteuid() != 0:
            raise JobFailed("the hosts of a cluster are network namespaces, which need root")
        if not (self.rigs / "cluster.sh").exists():
            raise JobFailed(f"{rigs} has no cluster.sh; --rigs has to name the folder of the rigs")

    def __enter__(self):
        done = subprocess.run([self.rigs / "cluster.sh", "up", str(self.hosts), str(self.rate)])
        if done.returncode != 0:
            raise JobFailed(f"cluster.sh up ended with exit code {done.returncode}")
        return self

    def __exit__(self, *_):
        subprocess.run([self.rigs / "cluster.sh", "down"], check=False)

    def address(self, host):
        """The address that cluster.sh has given to a host."""
        return f"10.77.0.{host + 1}"

    def command(self, host, words):
        """The command that runs `words` on a host."""
        return [str(self.rigs / "nsrun.sh"), str(host), *words]


class Processes:
    """What a job has started, each process in a session of its own; all of it ends with the job."""

    def __init__(self, hosts=None):
        """Without `hosts` all run on this one."""
        self.hosts, self.running = hosts or Here(), []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for ask, patience in ((signal.SIGTERM, PATIENCE_SECONDS), (signal.SIGKILL, None)):
            for process in self.running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, ask)
            for process in self.running:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(patience)

    def start(self, words, host=0, **options):
        """Starts a command on a host; it ends with the job at the latest."""
        command = self.hosts.command(host, [str(word) for word in words])
        with signals_held():
            process = subprocess.Popen(command, start_new_session=True, stdin=subprocess.DEVNULL, **options)
            self.running.append(process)
        return process

    def place(self, workers):
        """The variables that tell the processes of a job with this number of workers where to meet."""
        meeting = {"MASTER_ADDR": self.hosts.address(0), "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(workers)}
        return meeting | {"GLOO_SOCKET_IFNAME": self.hosts.interface, "OMP_NUM_THREADS": "1"}

    def run(self, words, environment, hosts):
        """Runs a command to its end as every rank; `hosts` has each rank's host."""
        self.finish([self.start(words, host, env=environment | {"RANK": str(rank)}) for rank, host in enumerate(hosts)])

    def reducer(self, environment, host=0):
        """Starts a reducer of the release that the workers have, on a free port of a host."""
        words = [sys.executable, "-m", "herringbone", "serve", "--listen", f"{self.hosts.address(host)}:0", "--json"]
        return Reducer(self.start(words, host, env=environment, stdout=subprocess.PIPE, text=True))

    def finish(self, workers):
        """Waits for the workers; the first that fails ends the job."""
        while any(worker.poll() is None for worker in workers):
            self.check(workers)
            time.sleep(POLL_SECONDS)
        self.check(workers)

    def check(self, workers):
        """Fails if a worker has."""
        for rank, worker in enumerate(workers):
            if worker.poll():
                raise JobFailed(f"worker {rank} ended with exit code {worker.returncode}; its output is above")


class Reducer:
    """A running `herringbone serve`: it says where it listens and, at its end, what it moved."""

    def __init__(self, process):
        self.process = process
        self.address = self._said()["listening"]

    def stop(self):
        """Ends it and returns its account: bytes received and sent."""
        self.process.terminate()
        return self._said()

    def _said(self):
        line = self.process.stdout.readline()
        if not line:
            raise JobFailed(f"a reducer ended with exit code {self.process.wait()}")
        return json.loads(line)


@contextlib.contextmanager
def signals_held():
    """Signals that end this process take effect behind the block: a process that it starts is known by then."""
    held = []
    enders = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    handlers = {number: signal.signal(number, lambda came, _: held.append(came)) for number in enders}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in held:
            signal.raise_signal(number)
