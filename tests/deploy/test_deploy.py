"""What deploy/ says works with the program as it is: settings, commands, addresses. `make deploy-check` has the schemas."""

import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "bench"))

from ports import free_port

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
BINARY = ROOT / "target" / "debug" / "herringbone"
FILES = sorted(path for path in DEPLOY.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
SPEC = importlib.util.spec_from_file_location("start", DEPLOY / "vertex" / "start.py")
start = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(start)


def output_of(*words):
    """What a command prints."""
    return subprocess.run(words, stdout=subprocess.PIPE, check=True, text=True).stdout


def test_all_variables_are_settings():
    known = {json.loads(line)["name"] for line in output_of(BINARY, "settings", "--json").splitlines()}
    named = {name for path in FILES for name in re.findall(r"\bHERRINGBONE_[A-Z_]+", path.read_text())}
    assert {"HERRINGBONE_REDUCERS", "HERRINGBONE_TOKEN"} <= named <= known


def test_all_options_of_serve_are_there():
    options = output_of(BINARY, "serve", "--help")
    lines = [line for path in FILES for line in path.read_text().splitlines() if re.search(r"\bserve\b", line)]
    named = {name for line in lines for name in re.findall(r"(?<=[\s\"\[])--[a-z][a-z-]+", line.split("serve")[1])}
    assert "--listen" in named and [name for name in named if name not in options] == []


@pytest.mark.parametrize(
    "name, host",
    [
        ("jobset.yaml", "training-reducers-0-{}.training"),
        ("plain.yaml", "reducer-{}.herringbone-reducers"),
    ],
)
def test_workers_are_told_of_all_reducers(name, host):
    text = (DEPLOY / "kubernetes" / name).read_text()
    listed = re.sub(r"\\\n\s*", "", text).split("name: HERRINGBONE_REDUCERS")[1].split('"')[1]
    [port] = set(re.findall(r"containerPort: (\d+)", text))
    [number] = set(re.findall(r"(?:replicas|completions): ([2-9]\d*)", text))
    assert listed == ",".join(f"{host.format(index)}:{port}" for index in range(int(number)))


def test_the_image_gets_what_it_copies():
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    copies = [line.split()[1:-1] for line in lines if line.startswith("COPY ") and "--from" not in line]
    copied = {name for names in copies for name in names}
    allowed = {line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line[:1] == "!"}
    assert copied == allowed and [name for name in copied if not (ROOT / name).exists()] == []
    links = [path.resolve().relative_to(ROOT).as_posix() for path in (ROOT / "python").iterdir() if path.is_symlink()]
    assert links and set(links) <= copied, "what the wheel takes from elsewhere"


def test_systemd_takes_the_unit(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze here")
    unit = DEPLOY / "systemd" / "herringbone-reducer.service"
    text = unit.read_text().replace("/usr/local/bin/herringbone", str(BINARY))
    (tmp_path / unit.name).write_text(text)
    done = subprocess.run(["systemd-analyze", "verify", tmp_path / unit.name], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


CLUSTER = {
    "workerpool0": ["first:2222"],
    "workerpool1": ["second:2222", "third:2222"],
    "workerpool2": ["reducer-0:2222", "reducer-1:2223"],
}


def vertex(pool, index, cluster=None):
    """What a replica of a Vertex AI job runs."""
    return start.command({"cluster": cluster or CLUSTER, "task": {"type": pool, "index": index}}, "4", ["train.py", "-v"])


def test_a_replica_of_vertex_finds_its_place():
    words, settings = vertex("workerpool1", 1)
    assert words == [
        *("torchrun", "--nnodes=3", "--node-rank=2", "--nproc-per-node=4"),
        *("--master-addr=first", "--master-port=2222", "train.py", "-v"),
    ]
    assert settings == {"HERRINGBONE_REDUCERS": "reducer-0:2222,reducer-1:2223"}
    assert "--node-rank=0" in vertex("workerpool0", 0)[0]
    assert vertex("workerpool2", 1) == (["herringbone", "serve", "--listen", "0.0.0.0:2223"], {})


def test_a_job_of_vertex_needs_no_reducers():
    assert vertex("workerpool0", 0, {"workerpool0": ["first:2222"]})[1] == {}
    with pytest.raises(SystemExit, match="workerpool3 has no part"):
        vertex("workerpool3", 0)


def test_vertex_runs_the_script_that_the_image_has():
    job, image = ((DEPLOY / name).read_text() for name in ("vertex/job.yaml", "Dockerfile"))
    [place] = set(re.findall(r"\S+/start\.py", job.replace(",", "")))
    assert f"deploy/vertex/start.py {place}" in image
    assert len(re.findall(r"^  - replicaCount", job, re.MULTILINE)) == 3
    [token] = set(re.findall(r"HERRINGBONE_TOKEN, value: ([^}\s]+)", job))
    assert len(token) >= 16


PROGRAM = """\
import torch, torch.distributed as dist

dist.init_process_group("herringbone")
values = torch.full((100_000,), float(dist.get_rank()))
dist.all_reduce(values)
assert values[0] == 1.0, values[0]
print("rank", dist.get_rank(), dist.group.WORLD.describe(), flush=True)
dist.destroy_process_group()
"""

SRUN = """\
#!/bin/sh
shift  # --het-group
exec "$@"
"""


def batch(folder, torchrun, **settings):
    """Runs the whole batch, with programs in place of Slurm's that know one host."""
    programs = folder / "bin"
    programs.mkdir()
    for name, text in {
        "srun": SRUN,
        "scontrol": "#!/bin/sh\necho 127.0.0.1\n",
        "herringbone": f'#!/bin/sh\nexec {BINARY} "$@"\n',
        "torchrun": torchrun,
    }.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (folder / "train.py").write_text(PROGRAM)
    before = {name: value for name, value in os.environ.items() if not name.startswith(("HERRINGBONE_", "MASTER_"))}
    environment = before | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "1",
        "SLURM_JOB_NODELIST_HET_GROUP_0": "worker",
        "SLURM_JOB_NODELIST_HET_GROUP_1": "reducer",
        "RANKS_PER_NODE": "2",
        "REDUCER_PORT": str(free_port()),
        "STORE_PORT": str(free_port()),
    }
    command = ["bash", DEPLOY / "slurm" / "training.sbatch"]
    return subprocess.run(command, cwd=folder, env=environment | settings, capture_output=True, text=True, timeout=120)


@pytest.mark.full
def test_the_batch_of_slurm_trains_with_its_reducer(tmp_path):
    torchrun = f'#!/bin/sh\nexec {sys.executable} -m torch.distributed.run "$@"\n'
    done = batch(tmp_path, torchrun, HERRINGBONE_ALGORITHM="reduction_server")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(", the reducer 127.0.0.1:") == 2, done.stdout
    assert "reducer stopped; 1 job" in done.stdout, "it ends with the training"


def test_a_training_that_fails_ends_the_batch_and_its_reducer(tmp_path):
    done = batch(tmp_path, "#!/bin/sh\nsleep 1\nexit 3\n")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "reducer stopped" in done.stdout
