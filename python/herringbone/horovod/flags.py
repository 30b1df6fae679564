"""The arguments of ``horovodrun``, and the ``HOROVOD_*`` variables that they become."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from .common.settings import LOG_LEVELS

FRUITLESS = 8
"""The default for how many processes are restarted without a commit in between."""

__all__ = ["FRUITLESS", "parse", "variables_of", "without_effect"]

ALONE = """--disable-cache --hierarchical-allreduce --no-hierarchical-allreduce --hierarchical-allgather
--no-hierarchical-allgather --torus-allreduce --no-torus-allreduce --mpi-threads-disable --no-mpi-threads-disable --tcp
--log-with-timestamp --log-without-timestamp --log-hide-timestamp --no-log-hide-timestamp --gloo --mpi --jsrun"""
WITH_VALUE = """--start-timeout --autotune-bayes-opt-max-samples --autotune-gaussian-process-noise --mpi-args --binding-args
--num-nccl-streams --thread-affinity"""
NO_EFFECT = dict.fromkeys(WITH_VALUE.split(), 1) | dict.fromkeys(ALONE.split(), 0) | {"--blacklist-cooldown-range": 2}
"""Flags of Horovod that have no effect here, and how many values follow them."""

VALUES: dict[str, tuple[str, float]] = {
    "fusion_threshold_mb": ("HOROVOD_FUSION_THRESHOLD", 1 << 20),
    "cycle_time_ms": ("HOROVOD_CYCLE_TIME", 1),
    "cache_capacity": ("HOROVOD_CACHE_CAPACITY", 1),
    "autotune_warmup_samples": ("HOROVOD_AUTOTUNE_WARMUP_SAMPLES", 1),
    "autotune_steps_per_sample": ("HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", 1),
    "stall_check_warning_time_seconds": ("HOROVOD_STALL_CHECK_TIME_SECONDS", 1),
    "stall_check_shutdown_time_seconds": ("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", 1),
    "gloo_timeout_seconds": ("HOROVOD_GLOO_TIMEOUT_SECONDS", 1),
    "elastic_timeout": ("HOROVOD_ELASTIC_TIMEOUT", 1),
}
TEXTS = {
    "autotune_log_file": "HOROVOD_AUTOTUNE_LOG",
    "timeline_filename": "HOROVOD_TIMELINE",
    "network_interfaces": "HERRINGBONE_IFNAME",
}
SWITCHES = {
    "autotune": "HOROVOD_AUTOTUNE",
    "timeline_mark_cycles": "HOROVOD_TIMELINE_MARK_CYCLES",
}


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of the command line; a mistake ends the process with a line that names it."""
    parser = argparse.ArgumentParser(
        prog="herringbone horovodrun",
        description="Start a program that uses Horovod's interface as several processes, on this host or others.",
        allow_abbrev=False,
    )
    parser.add_argument("-cb", "--check-build", action="store_true", help="print what this installation supports, and exit")
    parser.add_argument("-np", "--num-proc", type=_positive, help="how many processes [default: all slots of the hosts]")
    parser.add_argument("-H", "--hosts", help="hosts and their slots, such as host1:2,host2:4 [default: this host]")
    parser.add_argument("-hostfile", "--hostfile", help="a file of lines such as: host1 slots=2")
    parser.add_argument("-p", "--ssh-port", type=_positive, help="the port of ssh on other hosts")
    parser.add_argument("-i", "--ssh-identity-file", help="the key of ssh")
    parser.add_argument("--output-filename", help="a folder for the output of each rank, instead of the terminal")
    timestamps = ("-prefix-timestamp", "--prefix-output-with-timestamp")
    parser.add_argument(*timestamps, action="store_true", help="print the time before each line")
    parser.add_argument("--verbose", action="store_true", help="print the commands that are run")
    parser.add_argument("-v", "--version", action="store_true", help="print the version, and exit")
    parser.add_argument("--config-file", help="Horovod's YAML file of values; flags of the command line override it")
    attempts = "how often a rank's program starts until it succeeds or makes progress, while the other ranks keep running"
    parser.add_argument("--max-attempts", type=_positive, default=1, help=attempts)
    elastic = parser.add_argument_group("processes come and go")
    elastic.add_argument("--min-np", "--min-num-proc", type=_positive, help="continue with at least this many processes")
    elastic.add_argument("--max-np", "--max-num-proc", type=_positive, help="grow to at most this many processes [default: -np]")
    resets = f"the most restarts of processes [default: {FRUITLESS} without a commit in between]"
    elastic.add_argument("--reset-limit", type=_positive, help=resets)
    elastic.add_argument("--elastic-timeout", type=float, help="seconds to wait for new processes if there are too few")
    elastic.add_argument(
        "--host-discovery-script",
        help="a program that prints lines such as: host1:2; it runs once a second, and the job follows its output",
    )
    elastic.add_argument("--slots-per-host", type=_positive, help="slots of hosts that are listed without a number")
    _add_tuning(parser.add_argument_group("tuning and watching"))
    idle = parser.add_argument_group("accepted, and without effect")
    for flag, values in NO_EFFECT.items():
        if values == 0:
            idle.add_argument(flag, action="store_true", help=argparse.SUPPRESS)
        else:
            idle.add_argument(flag, action="append", nargs=values, help=argparse.SUPPRESS)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the program and its arguments")
    return parser.parse_args(arguments)


def _add_tuning(group: Any) -> None:
    for name in (*VALUES, "autotune_log_file", "timeline_filename", "network_interfaces"):
        if name != "elastic_timeout":
            flag = "--" + name.replace("_", "-")
            flags = [flag, flag.removesuffix("s")] if name == "network_interfaces" else [flag]
            group.add_argument(*flags, type=float if name in VALUES else str, metavar="VALUE", help=_meaning(name))
    for name in (*SWITCHES, "stall_check"):
        flag = name.replace("_", "-")
        group.add_argument(f"--{flag}", dest=name, action="store_true", default=None, help=_meaning(name))
        group.add_argument(f"--no-{flag}", dest=name, action="store_false", help=argparse.SUPPRESS)
    group.add_argument("--log-level", choices=list(LOG_LEVELS), help="how much is logged on standard error")


def _meaning(name: str) -> str:
    variable = {**TEXTS, **SWITCHES, "stall_check": "HOROVOD_STALL_CHECK_DISABLE"}.get(name)
    return f"sets {variable or VALUES[name][0]}"


def _positive(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number of 1 or more")
    return number


def variables_of(options: argparse.Namespace) -> dict[str, str]:
    """The environment variables that the flags set."""
    given = vars(options)
    variables = {name: f"{given[flag] * factor:.15g}" for flag, (name, factor) in VALUES.items() if given[flag] is not None}
    variables |= {name: given[flag] for flag, name in TEXTS.items() if given[flag] is not None}
    variables |= {name: str(int(given[flag])) for flag, name in SWITCHES.items() if given[flag] is not None}
    if options.stall_check is not None:
        variables["HOROVOD_STALL_CHECK_DISABLE"] = str(int(not options.stall_check))
    if options.log_level is not None:
        variables["HOROVOD_LOG_LEVEL"] = options.log_level
        variables["HERRINGBONE_LOG"] = LOG_LEVELS[options.log_level]
    return variables


def without_effect(options: argparse.Namespace) -> list[str]:
    """The given flags that have no effect."""
    return [flag for flag in NO_EFFECT if vars(options)[flag.lstrip("-").replace("-", "_")]]
