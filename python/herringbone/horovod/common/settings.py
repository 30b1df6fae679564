"""The ``HOROVOD_*`` variables: the ones that have an effect here, and one warning about the others."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from ...errors import ConfigError

__all__ = ["EFFECTIVE", "LOG_LEVELS", "Settings", "pass_on_log_level", "variables_without_effect"]

LOG_LEVELS = {"TRACE": "debug", "DEBUG": "debug", "INFO": "info", "WARNING": "warn", "ERROR": "error", "FATAL": "off"}
"""Horovod's log levels, and the engine's levels for them."""

READ = """AUTOTUNE AUTOTUNE_LOG AUTOTUNE_STEPS_PER_SAMPLE AUTOTUNE_WARMUP_SAMPLES CACHE_CAPACITY CYCLE_TIME DISABLE_GROUP_FUSION
DYNAMIC_PROCESS_SETS ELASTIC ELASTIC_MIN_NP ELASTIC_TIMEOUT FUSION_THRESHOLD GLOO_TIMEOUT_SECONDS HOSTNAME LOG_LEVEL
STALL_CHECK_DISABLE STALL_CHECK_TIME_SECONDS STALL_SHUTDOWN_TIME_SECONDS TIMELINE TIMELINE_MARK_CYCLES"""
OF_LAUNCHERS = "RANK SIZE CROSS_RANK CROSS_SIZE LOCAL_RANK LOCAL_SIZE CALLED FOLDER WORKER"

EFFECTIVE = frozenset(f"HOROVOD_{name}" for name in f"{READ} {OF_LAUNCHERS}".split())
"""The variables that have an effect, or that only repeat known facts."""


@dataclass(frozen=True)
class Settings:
    """The values of the variables, in seconds and bytes."""

    cycle_time: float = 0.001
    fusion_threshold: int = 128 << 20
    cache_capacity: int = 1024
    stall_warning: float = 60.0
    stall_shutdown: float = 0.0
    group_fusion: bool = True
    autotune: bool = False
    autotune_log: str | None = None
    autotune_warmup_samples: int = 3
    autotune_steps_per_sample: int = 10
    timeline: str | None = None
    timeline_marks_cycles: bool = False
    dynamic_process_sets: bool = False
    elastic: bool = False
    least_workers: int = 1
    elastic_timeout: float = 600.0
    operation_timeout: float | None = None

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """The settings from these variables.

        Raises:
            ConfigError: a variable has an invalid value, such as one that is no number.
        """
        reader = _Reader(environment)
        timeline = environment.get("HOROVOD_TIMELINE") or None
        seconds = reader.number("GLOO_TIMEOUT_SECONDS", 0.0)
        return cls(
            cycle_time=reader.number("CYCLE_TIME", 1.0) / 1000,
            fusion_threshold=int(reader.number("FUSION_THRESHOLD", 128 << 20)),
            cache_capacity=int(reader.number("CACHE_CAPACITY", 1024)),
            stall_warning=0.0 if reader.flag("STALL_CHECK_DISABLE") else reader.number("STALL_CHECK_TIME_SECONDS", 60.0),
            stall_shutdown=0.0 if reader.flag("STALL_CHECK_DISABLE") else reader.number("STALL_SHUTDOWN_TIME_SECONDS", 0.0),
            group_fusion=not reader.flag("DISABLE_GROUP_FUSION"),
            autotune=reader.flag("AUTOTUNE"),
            autotune_log=environment.get("HOROVOD_AUTOTUNE_LOG") or None,
            autotune_warmup_samples=int(reader.number("AUTOTUNE_WARMUP_SAMPLES", 3)),
            autotune_steps_per_sample=int(reader.number("AUTOTUNE_STEPS_PER_SAMPLE", 10)),
            timeline=None if timeline == "DYNAMIC" else timeline,
            timeline_marks_cycles=reader.flag("TIMELINE_MARK_CYCLES"),
            dynamic_process_sets=reader.flag("DYNAMIC_PROCESS_SETS"),
            elastic=reader.flag("ELASTIC"),
            least_workers=max(1, int(reader.number("ELASTIC_MIN_NP", 1))),
            elastic_timeout=reader.number("ELASTIC_TIMEOUT", 600.0),
            operation_timeout=seconds or None,
        )


class _Reader:
    """Numbers and flags of an environment, with Horovod's prefix."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    def number(self, name: str, default: float) -> float:
        text = self._environment.get("HOROVOD_" + name, "").strip()
        if not text:
            return default
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value < float("inf"):
            raise ConfigError(f"HOROVOD_{name}: {text!r} is not a number of 0 or more")
        return value

    def flag(self, name: str) -> bool:
        """A flag as Horovod reads it: any number above 0 and ``true`` mean yes."""
        text = self._environment.get("HOROVOD_" + name, "").strip().lower()
        return text == "true" or (text.isdigit() and int(text) > 0)


def pass_on_log_level() -> None:
    """Set the engine's log level to Horovod's, if the engine's own is not set."""
    level = os.environ.get("HOROVOD_LOG_LEVEL", "").strip().upper()
    if level in LOG_LEVELS:
        os.environ.setdefault("HERRINGBONE_LOG", LOG_LEVELS[level])


def variables_without_effect(environment: Mapping[str, str] = os.environ) -> list[str]:
    """The ``HOROVOD_*`` variables that are set and have no effect here."""
    return sorted(name for name in environment if name.startswith("HOROVOD_") and name not in EFFECTIVE)
