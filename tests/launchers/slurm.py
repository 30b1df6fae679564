"""A cluster of Slurm on this machine alone, for as long as it is needed: munge, a controller and one node."""

import os
import pathlib
import shutil
import socket
import subprocess
import time

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "salloc")
SECONDS = 30
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
"""Daemons are there, too."""
CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldPort={controller}
SlurmdPort={node}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
MailProg=/bin/true
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES OverSubscribe=FORCE:4 State=UP
"""


class Cluster:
    """`with` it, jobs that have its `variables` can use it; if this machine cannot have it, `missing` says what for."""

    def __init__(self, folder):
        self.folder, self.processes = pathlib.Path(folder), []
        self.variables = {"SLURM_CONF": str(self.folder / "slurm.conf")}
        absent = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
        self.missing = absent[0] if absent else "" if os.geteuid() == 0 else "root, who runs slurmd,"

    def __enter__(self):
        if not self.missing:
            self.begin()
        return self

    def __exit__(self, *_):
        for process in reversed(self.processes):
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def begin(self):
        for name in ("munge", "state", "spool"):
            (self.folder / name).mkdir(mode=0o755)
        # munge wants folders that only their owner may write, and a socket that others reach.
        self.folder.chmod(0o755)
        key = self.folder / "munge" / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        controller, node = free_ports(2)
        host = socket.gethostname().split(".")[0]
        text = CONFIGURATION.format(
            host=host, folder=self.folder, controller=controller, node=node, cpus=len(os.sched_getaffinity(0))
        )
        pathlib.Path(self.variables["SLURM_CONF"]).write_text(text)
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = [f"--{option}={self.folder}/munge/{name}" for option, name in files.items()]
        self.start("munged", "--foreground", "--force", *options)
        self.until(lambda: (self.folder / "munge" / "socket").exists(), "munged")
        self.start("slurmctld", "-D")
        self.start("slurmd", "-D")
        self.until(self.is_idle, "slurmctld and slurmd")

    def start(self, program, *options):
        with (self.folder / f"{program}.log").open("w") as log:
            words = [shutil.which(program, path=PATH), *options]
            process = subprocess.Popen(words, env=os.environ | self.variables, stdout=log, stderr=log)
        self.processes.append(process)

    def is_idle(self):
        asked = subprocess.run(
            ["sinfo", "--noheader", "--format=%T"],
            env=os.environ | self.variables,
            capture_output=True,
            text=True,
            check=False,
        )
        return asked.stdout.strip() == "idle"

    def until(self, holds, what):
        deadline = time.monotonic() + SECONDS
        while not holds():
            if time.monotonic() > deadline:
                logs = "\n".join(path.read_text()[-2000:] for path in self.folder.glob("*.log"))
                raise TimeoutError(f"{what} did not begin within {SECONDS} s:\n{logs}")
            time.sleep(0.1)


def free_ports(count):
    """Ports that nobody listens at now."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
