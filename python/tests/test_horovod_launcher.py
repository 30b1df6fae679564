"""``herringbone horovodrun``: places, flags, ends, and other hosts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import START_SECONDS, clean_environment

from herringbone.horovod import hosts
from herringbone.horovod.config import flags_of
from herringbone.horovod.flags import FRUITLESS, NO_EFFECT, parse, variables_of, without_effect
from herringbone.horovod.hosts import Slot, slots_of, surplus
from herringbone.horovod.launch import Job, Worker, WorkerState
from herringbone.horovod.processes import Process
from lab.job import python

SHOW = "import os; print(*(os.environ['HOROVOD_' + n] for n in ('RANK', 'SIZE', 'LOCAL_RANK', 'CROSS_RANK', 'HOSTNAME')))"


def horovodrun(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "herringbone", "horovodrun", *arguments]
    return subprocess.run(command, env=clean_environment(environment), capture_output=True, text=True, timeout=START_SECONDS)


def test_each_rank_knows_its_place_and_none_of_another_job() -> None:
    show = SHOW + "; assert 'RANK' not in os.environ and len(os.environ['HERRINGBONE_TOKEN']) == 64"
    places = ("-H", "localhost:2,127.0.0.1:1")
    outcome = horovodrun("-np", "3", *places, sys.executable, "-c", show, RANK="7", WORLD_SIZE="9")
    assert outcome.returncode == 0, outcome.stderr
    assert sorted(outcome.stdout.splitlines()) == [
        "[0]<stdout>:0 3 0 0 localhost",
        "[1]<stdout>:1 3 1 0 localhost",
        "[2]<stdout>:2 3 0 1 127.0.0.1",
    ]


def test_slots_come_from_lists_files_and_scripts(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("one slots=2\n# nothing\ntwo\n")
    assert [slot.host for slot in slots_of(parse(["-hostfile", str(file), "x"]))] == ["one", "one", "two"]
    script = tmp_path / "discover"
    script.write_text("#!/bin/sh\necho three:1\necho four\n")
    script.chmod(0o755)
    options = parse(["--host-discovery-script", str(script), "--slots-per-host", "2", "-np", "3", "x"])
    assert slots_of(options)[1:] == [Slot("four", 1, 0, 2, 1, 2), Slot("four", 2, 1, 2, 0, 1)]
    with pytest.raises(ValueError, match="-np 4: the hosts have 2 slots"):
        slots_of(parse(["-np", "4", "-H", "a:2", "x"]))
    with pytest.raises(ValueError, match="'a:b' is not a host and its slots"):
        slots_of(parse(["-H", "a:b", "x"]))


def test_a_script_for_hosts_that_does_not_end_or_prints_no_text_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, left = tmp_path / "discover", tmp_path / "left"
    options = parse(["--host-discovery-script", str(script), "-np", "1", "x"])
    script.write_text("#!/bin/sh\nprintf '\\377\\n'\n")
    script.chmod(0o755)
    with pytest.raises(ValueError, match="'\ufffd' is not a host and its slots"):
        slots_of(options)
    monkeypatch.setattr(hosts, "SCRIPT_SECONDS", 0.5)
    os.mkfifo(left)
    # What the script has started holds its output, and the pipe's other end.
    script.write_text(f"#!/bin/sh\nsleep 1000 >{left} &\nsleep 1000\n")
    reader = os.open(left, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(ValueError, match=f"{script} has not ended within 0.5 s"):
        slots_of(options)
    with os.fdopen(reader, "rb") as ends:
        os.set_blocking(reader, True)
        assert ends.read() == b"", "all that the script has started is killed"


def test_flags_become_variables() -> None:
    flags = "--fusion-threshold-mb 32 --cycle-time-ms 3.5 --cache-capacity 2048 --autotune --no-stall-check"
    more = "--timeline-filename t.json --timeline-mark-cycles --log-level DEBUG --network-interfaces eth1"
    assert variables_of(parse([*flags.split(), *more.split(), "python", "train.py", "--autotune"])) == {
        "HOROVOD_FUSION_THRESHOLD": "33554432",
        "HOROVOD_CYCLE_TIME": "3.5",
        "HOROVOD_CACHE_CAPACITY": "2048",
        "HOROVOD_AUTOTUNE": "1",
        "HOROVOD_STALL_CHECK_DISABLE": "1",
        "HOROVOD_TIMELINE": "t.json",
        "HOROVOD_TIMELINE_MARK_CYCLES": "1",
        "HERRINGBONE_IFNAME": "eth1",
        "HOROVOD_LOG_LEVEL": "DEBUG",
        "HERRINGBONE_LOG": "debug",
    }
    assert variables_of(parse(["python"])) == {}


def test_flags_without_effect_are_named_in_one_line() -> None:
    given = [word for flag, value in NO_EFFECT.items() for word in [flag, *["1"] * value]]
    assert without_effect(parse([*given, "program"])) == list(NO_EFFECT)
    outcome = horovodrun("-np", "1", "--gloo", "--num-nccl-streams", "2", sys.executable, "-c", "pass")
    assert outcome.returncode == 0
    assert outcome.stderr == "herringbone horovodrun: these flags have no effect: --num-nccl-streams, --gloo\n"


def test_a_rank_that_fails_ends_the_others() -> None:
    program = "import os, time\nif os.environ['HOROVOD_RANK'] == '1': raise SystemExit(3)\ntime.sleep(600)"
    began = time.monotonic()
    outcome = horovodrun("-np", "3", sys.executable, "-c", program)
    assert outcome.returncode == 3
    assert time.monotonic() - began < 120, "it takes seconds, and the others ten minutes: the rest is margin"
    assert "rank 1 failed first, with exit status 3" in outcome.stderr


def test_of_ranks_that_end_shortly_after_each_other_the_first_is_named(tmp_path: Path) -> None:
    # Rank 2 begins once the launcher watches rank 1.
    program = f"""import os, pathlib, select, time
rank = os.environ['HOROVOD_RANK']
file = pathlib.Path({str(tmp_path)!r}) / rank
file.with_suffix('.new').write_text(str(os.getpid()))
file.with_suffix('.new').rename(file)
awaited = file.with_name({{'0': '1', '1': '2', '2': 'none'}}[rank])
while not awaited.exists(): time.sleep(0.001)
if rank == '1': os._exit(3)
try:
    select.select([os.pidfd_open(int(awaited.read_text()))], [], [])
except ProcessLookupError:
    pass
os._exit(4)"""
    for _ in range(2):
        for rank in range(3):
            (tmp_path / str(rank)).unlink(missing_ok=True)
        outcome = horovodrun("-np", "3", sys.executable, "-S", "-c", program)
        assert outcome.returncode == 3 and "rank 1 failed first, with exit status 3; its own" in outcome.stderr


def test_those_that_ended_while_one_was_started_are_named_together(capfd: pytest.CaptureFixture[str]) -> None:
    options = parse(["-np", "4", "sleep", "100"])
    slots = [Slot("localhost", rank, rank, 4, 0, 1) for rank in range(4)]
    job = Job(slots, options, {})
    processes: list[Process] = []

    def kill(rank: int) -> None:
        processes[rank].signal(signal.SIGKILL)
        os.waitid(os.P_PID, processes[rank].pid, os.WEXITED | os.WNOWAIT)

    for slot in slots:
        processes.append(Process(slot, options.command, dict(os.environ), options, None))
        # The order is known of 2 and 0, and not of 3 and 1.
        for rank in {2: (0,), 3: (3, 1)}.get(slot.rank, ()):
            kill(rank)
        job._ends.watch(slot.rank, processes[-1])
        job._workers[slot.rank] = Worker(slot.rank, slot, processes[-1], True, WorkerState.ACTIVE)
    kill(2)
    assert job._ends.next(0) == [[0], [1, 3], [2]] and job._ends.next(0) == []
    job._workers[1].process.status()
    assert job._after(job._workers[1], [job._workers[rank] for rank in (1, 3)]) == 128 + signal.SIGKILL
    job._ends.close()
    assert "rank 1 failed first, by signal 9, or rank 3, by signal 9; its own" in capfd.readouterr().err


def test_a_process_is_started_again_as_often_as_the_limit_says(tmp_path: Path) -> None:
    program = f"""import os, pathlib, time
if os.environ['HOROVOD_RANK'] == '1':
    with open({str(tmp_path / "lives")!r}, 'a') as lives: lives.write('x')
    raise SystemExit(4)
time.sleep(50)"""
    outcome = horovodrun("-np", "2", "--min-np", "1", "--reset-limit", "2", sys.executable, "-c", program)
    assert outcome.returncode == 4
    assert (tmp_path / "lives").read_text() == "xxx"
    assert outcome.stderr.count("; restarting it") == 2
    assert "rank 1 failed, with exit status 4, after rank 1 had ended with exit status 4; its own message" in outcome.stderr


def test_the_end_of_an_elastic_job_names_the_rank_that_had_failed_before(tmp_path: Path) -> None:
    program = f"""import os, pathlib, time
dead = pathlib.Path({str(tmp_path / "dead")!r})
if os.environ['HOROVOD_RANK'] == '1':
    if dead.exists(): time.sleep(50)
    dead.touch()
    raise SystemExit(3)
while not dead.exists(): time.sleep(0.01)
time.sleep(1)
raise SystemExit(1)"""
    outcome = horovodrun("-np", "2", "--min-np", "1", "--reset-limit", "1", sys.executable, "-c", program)
    assert outcome.returncode in (1, 3)
    first, second = ("0", "1"), ("1", "3")
    assert any(
        f"rank {one} failed, with exit status {status}, after rank {other} had ended with exit status {before};" in outcome.stderr
        for (one, status), (other, before) in ((first, second), (second, first))
    ), outcome.stderr


@pytest.mark.full
def test_a_rank_that_always_fails_is_not_started_for_ever(tmp_path: Path) -> None:
    """What has been committed between counts: only restarts that lead nowhere are limited."""
    program = f"""import os, pathlib, time
if os.environ['HOROVOD_RANK'] == '1':
    lives = pathlib.Path({str(tmp_path / "lives")!r})
    with lives.open('a') as file: file.write('x')
    if len(lives.read_text()) == 2:
        pathlib.Path(os.environ['HOROVOD_FOLDER'], '0.committed').touch()
    raise SystemExit(4)
time.sleep(50)"""
    outcome = horovodrun("-np", "2", "--min-np", "1", sys.executable, "-c", program)
    assert outcome.returncode == 4
    assert len((tmp_path / "lives").read_text()) == FRUITLESS + 2, outcome.stderr
    assert f"restarted {FRUITLESS} times without a commit in between; fix what ends rank 1, or" in outcome.stderr
    assert "--reset-limit" in outcome.stderr


def test_a_rank_starts_again_alone_until_it_succeeds_or_makes_no_progress() -> None:
    program = """import os, sys, time
rank, attempt = int(os.environ['HOROVOD_RANK']), int(os.environ['DMLC_NUM_ATTEMPT'])
print('attempt', attempt)
if rank == 0:
    sys.exit(0)
if sys.argv[1] == 'progress' and attempt < 3:
    open(os.environ['HERRINGBONE_PROGRESS_FILE'], 'w').write(str(attempt))
os.kill(os.getpid(), 9) if attempt < 4 or sys.argv[1] == 'none' else sys.exit(0)"""
    flags = ("-np", "2", "--max-attempts", "3", sys.executable, "-c", program)
    done = horovodrun(*flags, "progress", HERRINGBONE_PROGRESS_FILE="outer")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0]<stdout>:attempt 0", *(f"[1]<stdout>:attempt {n}" for n in range(5))]
    assert done.stderr.count("rank 1 ended by signal 9 and starts again, as attempt") == 4
    failed = horovodrun(*flags, "none")
    assert failed.returncode == 128 + 9 and failed.stdout.count("[1]<stdout>:") == 3
    assert "rank 1 failed 3 times without progress in between, with signal: 9 (SIGKILL), 3 times;" in failed.stderr


def test_the_script_for_hosts_says_where_a_process_starts_again(tmp_path: Path) -> None:
    lives, script = tmp_path / "lives", tmp_path / "discover"
    # First two hosts; once the second one's process has ended, no room, then a failure, then the first host has a slot more.
    asked = tmp_path / "asked"
    answers = "1) echo localhost:1;; 2) exit 5;; *) echo localhost:2;;"
    script.write_text(
        f"#!/bin/sh\nif [ ! -e {lives} ]; then echo localhost:1; echo 127.0.0.1:1; exit; fi\n"
        f"echo x >>{asked}\ncase $(wc -l <{asked}) in {answers} esac\n"
    )
    script.chmod(0o755)
    program = f"""import os, time
if os.environ['HOROVOD_RANK'] == '1':
    with open({str(lives)!r}, 'a') as file: file.write(os.environ['HOROVOD_HOSTNAME'] + os.environ['HOROVOD_LOCAL_RANK'] + ' ')
    raise SystemExit(4)
time.sleep(50)"""
    flags = ("-np", "2", "--min-np", "1", "--reset-limit", "1", "--host-discovery-script", str(script))
    outcome = horovodrun(*flags, sys.executable, "-c", program)
    assert outcome.returncode == 4, outcome.stderr
    assert lives.read_text() == "127.0.0.10 localhost1 "
    assert len(asked.read_text().splitlines()) >= 3 and "ended with exit status 5: ; asking it again" in outcome.stderr


def test_a_job_begins_with_what_the_script_has_and_waits_for_the_least(tmp_path: Path) -> None:
    script, asked = tmp_path / "discover", tmp_path / "asked"
    script.write_text(f"#!/bin/sh\necho x >>{asked}\n[ $(wc -l <{asked}) = 1 ] || echo localhost:5\n")
    script.chmod(0o755)
    said: list[str] = []
    flags = ["--host-discovery-script", str(script), "--min-np", "2"]
    assert len(slots_of(parse([*flags, "-np", "9", "x"]), said.append)) == 5
    assert said == [f"the hosts have 0 slots, and the job needs 2 to begin; asking {script} again"]
    assert len(slots_of(parse([*flags, "--max-np", "3", "x"]))) == 3
    with pytest.raises(ValueError, match="the hosts have 5 slots, and the job needs 6 to begin; no others came in time"):
        slots_of(parse(["--host-discovery-script", str(script), "-np", "6", "--elastic-timeout", "0.1", "x"]))


def test_what_hosts_have_no_room_for_goes_but_not_below_the_least() -> None:
    slots = [Slot(host, rank, 0, 1, 0, 1) for rank, host in enumerate("aabbc")]
    assert surplus(slots, [("a", 2), ("b", 2), ("c", 4)], 1) == []
    assert surplus(slots, [("b", 1), ("c", 1), ("a", 2)], 1) == [3]
    assert surplus(slots, [("a", 1)], 1) == [1, 2, 3, 4]
    assert surplus(slots, [("a", 1)], 3) == [3, 4]
    assert surplus(slots, [], 5) == []


def test_those_that_alone_know_the_state_stay_until_others_have_it(tmp_path: Path) -> None:
    slots = [Slot("localhost", rank, rank, 2, 0, 1) for rank in range(2)]
    job = Job(slots, parse(["-np", "2", "--host-discovery-script", "x", "x"]), {})
    job._folder = tmp_path
    process = SimpleNamespace(age=1.0)
    for number, (rank, state) in enumerate(
        [(1, WorkerState.ACTIVE), (2, WorkerState.ACTIVE), (0, WorkerState.JOINING), (3, WorkerState.JOINING)]
    ):
        worker = Worker(number, Slot("localhost", rank, 0, 1, 0, 1), process, number == 0, state)  # type: ignore[arg-type]
        job._workers[number] = worker

    def going(*hosts: tuple[str, int]) -> list[int]:
        present = sorted(job._workers.values(), key=lambda worker: (not job._knows(worker), worker.slot.rank))
        return [worker.number for worker in job._without_room(present, hosts)]

    # Worker 1 is planned with and has not taken part, and 2 and 3 are not even planned with.
    assert [job._knows(worker) for worker in job._workers.values()] == [True, False, False, False]
    assert going(("localhost", 1)) == [2, 1, 3] and going(("localhost", 3)) == [3]
    job._workers[0].slot = Slot("gone", 1, 0, 1, 0, 1)
    assert going(("localhost", 2)) == [3]
    (tmp_path / "1.joined").touch()
    assert going(("localhost", 2)) == [0, 3]


def test_output_goes_to_files_if_a_folder_is_given(tmp_path: Path) -> None:
    outcome = horovodrun("-np", "2", "--output-filename", str(tmp_path / "out"), sys.executable, "-c", SHOW)
    assert outcome.returncode == 0 and outcome.stdout == ""
    assert (tmp_path / "out" / "rank.1" / "stdout").read_text() == "1 2 1 0 localhost\n"


def test_what_it_says_of_itself_and_of_mistakes() -> None:
    build = horovodrun("--check-build").stdout
    assert "[X] PyTorch" in build and "[ ] TensorFlow" in build and "[X] Herringbone" in build
    assert horovodrun("-v").stdout.startswith("herringbone ")
    for nothing in ([], ["--"], [""]):
        assert "which program?" in horovodrun("-np", "2", *nothing).stderr
    assert "No such file" in horovodrun("--config-file", "x.yaml", "python").stderr
    assert horovodrun("--no-such-flag", "python").returncode == 2


def test_a_program_that_does_not_start_is_told_as_shells_do(tmp_path: Path) -> None:
    script, orphan, nothing = tmp_path / "train.py", tmp_path / "orphan", tmp_path / "nothing"
    script.write_text("print(1)\n")
    orphan.write_text("#!/no/such/interpreter\n")
    nothing.write_text("nothing\n")
    for file in (orphan, nothing):
        file.chmod(0o755)
    cases = (
        ("no-such-program", 127, "no folder of PATH has it; to run a file of this folder, write ./"),
        ("./no-such-program", 127, "the file does not exist"),
        (str(orphan), 127, "names an interpreter that does not exist"),
        (str(script), 126, f"it is not executable; to run a Python file, write: python {script}"),
        (str(tmp_path), 126, "it is a folder"),
        (str(nothing), 126, "it is not a program; a script's first line has to begin with #!"),
    )
    for program, status, text in cases:
        # Also where processes are started again.
        for flags in ((), ("--min-np", "1")) if status == 127 else ((),):
            outcome = horovodrun("-np", "2", *flags, program)
            assert outcome.returncode == status
            [line] = outcome.stderr.splitlines()
            assert line.startswith(f"herringbone horovodrun: cannot start {program!r}: ") and text in line


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["-np", "0"], "0 is not a number of 1 or more"),
        (["-np", "many"], "many is not a number of 1 or more"),
        (["-H", ""], "no host has a slot"),
        (["-H", "localhost:0"], "no host has a slot"),
        (["-H", "localhost:1,no-such-host.invalid:1"], "'no-such-host.invalid' is unknown here or unreachable"),
        (["-hostfile", "/no/such/file"], "No such file"),
        (["-hostfile", "/dev/zero"], "it is a device, and only regular files are read"),
        (["--config-file", __file__ + "/.."], "Not a directory"),
        (["--host-discovery-script", "/no/such/file"], "No such file or directory; pass the path of an executable program"),
        (["--output-filename", "/dev/null/folder"], "Not a directory"),
        (["-np", "2", "--min-np", "3"], "--min-np 3 is more than -np 2"),
        (["-np", "2", "--max-np", "1"], "--max-np 1 is less than -np 2"),
        (["-np", "2", "--max-attempts", "0"], "0 is not a number of 1 or more"),
        (["-np", "2", "--min-np", "1", "--max-attempts", "2"], "limit the restarts of this job with --reset-limit"),
    ],
)
def test_wrong_flags_are_told_in_a_line(flags: list[str], text: str) -> None:
    outcome = horovodrun(*flags, "python")
    assert outcome.returncode == 2 and "Traceback" not in outcome.stderr
    assert text in outcome.stderr.splitlines()[-1]


def test_a_rank_ends_also_if_nobody_takes_its_output_any_more() -> None:
    command = [sys.executable, "-m", "herringbone", "horovodrun", "-np", "1", "sh", "-c", "seq 100000; echo end >&2"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    launcher = subprocess.Popen(command, env=clean_environment(), **pipes)  # type: ignore[call-overload]
    assert launcher.stdout.readline() == "[0]<stdout>:1\n"
    launcher.stdout.close()
    assert launcher.wait(30) == 0 and "[0]<stderr>:end\n" in launcher.stderr.read()
    launcher.stderr.close()


CONFIG = """# A comment
controller: gloo
params:
  fusion_threshold_mb: 32
  cycle_time_ms: 10  # milliseconds

autotune:
  enabled: true
  log_file: 'a file.txt'
stall_check:
  enabled: false
params_of_mine:
  colour: red
"""


def test_a_file_has_values_that_flags_of_the_command_line_replace(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(CONFIG)
    names = ("FUSION_THRESHOLD", "CYCLE_TIME", "AUTOTUNE", "AUTOTUNE_LOG", "STALL_CHECK_DISABLE")
    show = f"import os; print(*(os.environ['HOROVOD_' + name] for name in {names}), sep='|')"
    flags = ("-np", "1", "--config-file", str(file), "--cycle-time-ms", "5")
    outcome = horovodrun(*flags, sys.executable, "-c", show)
    assert outcome.stdout == "[0]<stdout>:33554432|5|1|a file.txt|1\n", outcome.stderr
    assert f"{file}: these keys are unknown and ignored: params_of_mine.colour\n" in outcome.stderr
    assert "these flags have no effect: --gloo" in outcome.stderr
    for text, said in (("params:\n  - 1\n", "line 2: '- 1' is not supported"), ("verbose: 3\n", "line 1: '3' is not true")):
        file.write_text(text)
        with pytest.raises(ValueError, match=said):
            flags_of(str(file))


def test_a_rank_on_another_host_starts_again_and_has_no_file_for_progress(far: str) -> None:
    program = "echo $DMLC_NUM_ATTEMPT ${HERRINGBONE_PROGRESS_FILE-none}; exit $((4 * (1 - DMLC_NUM_ATTEMPT)))"
    done = horovodrun("-H", "far.example:1", "--max-attempts", "2", "sh", "-c", program, PATH=far)
    assert done.returncode == 0 and done.stdout == "[0]<stdout>:0 none\n[0]<stdout>:1 none\n", done.stderr


def test_other_hosts_are_reached_by_ssh_and_no_secret_is_on_a_command_line(far: str, tmp_path: Path) -> None:
    program = SHOW + "; print(os.environ['GIVEN'], len(os.environ['HERRINGBONE_TOKEN']))"
    flags = ("-H", "far.example:2", "-p", "2222", "-i", "key")
    outcome = horovodrun(*flags, sys.executable, "-c", program, PATH=far, GIVEN='it\'s "quoted"')
    assert outcome.returncode == 0, outcome.stderr
    assert "[1]<stdout>:1 2 1 0 far.example" in outcome.stdout
    assert '[1]<stdout>:it\'s "quoted" 64' in outcome.stdout
    assert (tmp_path / "ssh.log").read_text().splitlines() == ["-o BatchMode=yes -p 2222 -i key far.example sh -s"] * 2


def test_processes_of_other_hosts_end_with_the_launcher(far: str, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    command = [sys.executable, "-m", "herringbone", "horovodrun", "-H", "far.example:1", "sh", "-c"]
    launcher = subprocess.Popen([*command, f"echo $$ >{file}; exec sleep 60"], env=clean_environment({"PATH": far}))
    until = time.monotonic() + 20
    while not (file.exists() and file.read_text().strip()) and time.monotonic() < until:
        time.sleep(0.05)
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(20) == 128 + signal.SIGTERM
    process = Path("/proc") / file.read_text().strip()
    while process.exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not process.exists()


def test_ranks_on_several_hosts_meet_where_the_first_one_is() -> None:
    slots = [Slot("first.example", 0, 0, 1, 0, 2), Slot("localhost", 1, 0, 1, 1, 2)]
    job = Job(slots, parse(["x"]), {})
    assert job._common["HERRINGBONE_STORE"].startswith("first.example:")


def test_the_example_learns_to_read_digits() -> None:
    pytest.importorskip("torch")
    example = Path(__file__).resolve().parents[2] / "examples" / "horovod_digits.py"
    outcome = horovodrun("-np", "2", python(), str(example))
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert "% of new digits are read correctly, by 2 ranks" in outcome.stdout
