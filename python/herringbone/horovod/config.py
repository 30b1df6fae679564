"""The file of ``horovodrun --config-file``: its values become flags."""

from __future__ import annotations

import re

from .._herringbone import read_user_text

__all__ = ["flags_of"]

SWITCHES = {
    "verbose": "--verbose",
    "params.hierarchical_allreduce": "--hierarchical-allreduce",
    "params.hierarchical_allgather": "--hierarchical-allgather",
    "autotune.enabled": "--autotune",
    "timeline.mark_cycles": "--timeline-mark-cycles",
    "stall_check.enabled": "--stall-check",
    "library_options.mpi_threads_disable": "--mpi-threads-disable",
}
VALUES = {
    "params.fusion_threshold_mb": "--fusion-threshold-mb",
    "params.cycle_time_ms": "--cycle-time-ms",
    "params.cache_capacity": "--cache-capacity",
    "autotune.log_file": "--autotune-log-file",
    "autotune.warmup_samples": "--autotune-warmup-samples",
    "autotune.steps_per_sample": "--autotune-steps-per-sample",
    "autotune.bayes_opt_max_samples": "--autotune-bayes-opt-max-samples",
    "autotune.gaussian_process_noise": "--autotune-gaussian-process-noise",
    "timeline.filename": "--timeline-filename",
    "stall_check.warning_time_seconds": "--stall-check-warning-time-seconds",
    "stall_check.shutdown_time_seconds": "--stall-check-shutdown-time-seconds",
    "library_options.num_nccl_streams": "--num-nccl-streams",
    "library_options.thread_affinity": "--thread-affinity",
    "library_options.gloo_timeout_seconds": "--gloo-timeout-seconds",
    "logging.level": "--log-level",
}
NO_NEGATION = {"--verbose"}
TRUTH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
LINE = re.compile(r"""( *)([\w\-]+):(?:\s+("[^"]*"|'[^']*'|[^\s#"'\[\]{}&*!|>][^#]*?))?\s*(?:\s#.*)?""")
"""A key, and a value of one line, of YAML."""


def flags_of(path: str) -> tuple[list[str], list[str]]:
    """The flags that a file stands for, and its keys that Horovod does not know.

    Raises:
        ValueError: a line is not of the supported YAML: keys, sections of them, and values of one line.
        OSError: the file cannot be read.
    """
    flags: list[str] = []
    unknown: list[str] = []
    section = ""
    for number, line in enumerate(_text_of(path).splitlines(), 1):
        text = line.rstrip()
        if not text or text.lstrip().startswith("#") or text == "---":
            continue
        found = LINE.fullmatch(text)
        if found is None or (found[1] and not section):
            raise ValueError(
                f"--config-file {path}, line {number}: {text.strip()!r} is not supported; write sections, and in them lines such as "
                "cycle_time_ms: 3, without lists"
            )
        if not found[1] and found[3] is None:
            section = found[2] + "."
            continue
        section = section if found[1] else ""
        key, value = (section + found[2]).replace("-", "_"), (found[3] or "").strip("\"'")
        if key in SWITCHES:
            flags += _switch(SWITCHES[key], value, f"--config-file {path}, line {number}")
        elif key in VALUES and value:
            flags += [VALUES[key], value]
        elif key == "controller" and value in ("gloo", "mpi"):
            flags.append(f"--{value}")
        else:
            unknown.append(key)
    return flags, unknown


def _text_of(path: str) -> str:
    try:
        return read_user_text(path)
    except ValueError as error:
        raise ValueError(f"--config-file {error}") from None


def _switch(flag: str, value: str, where: str) -> list[str]:
    is_on = TRUTH.get(value.lower())
    if is_on is None:
        raise ValueError(f"{where}: {value!r} is not true or false")
    if is_on:
        return [flag]
    return [] if flag in NO_NEGATION else ["--no-" + flag.removeprefix("--")]
