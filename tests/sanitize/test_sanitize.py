"""What a sanitizer or Miri reports is found in its output, also if all tests pass."""

from __future__ import annotations

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from stages import STAGES, judged

PASSED = "test result: ok. 38 passed; 0 failed; 0 ignored\ntest result: ok. 2 passed; 0 failed; 0 ignored\n"


def test_tests_that_pass_are_counted() -> None:
    outcome = judged(STAGES[0], PASSED, 9.6, "")
    assert outcome.is_right() and outcome.row().endswith("| 40 | 0 | nothing | 10 |")


@pytest.mark.parametrize(
    "report",
    [
        "==1==ERROR: AddressSanitizer: heap-use-after-free on address 0x1",
        "WARNING: ThreadSanitizer: data race (pid=1)",
        "error: Undefined Behavior: out-of-bounds pointer use",
    ],
)
def test_reports_are_findings(report: str) -> None:
    outcome = judged(STAGES[0], f"{report}\n{PASSED}", 1, "")
    assert not outcome.is_right() and "| 1 reports |" in outcome.row()


def test_what_did_not_run_is_not_right() -> None:
    assert not judged(STAGES[0], "error: could not compile", 1, "exit code 101").is_right()
    assert not judged(STAGES[0], "", 1, "").is_right()
