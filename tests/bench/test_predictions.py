"""What pages of predictions say: which are close to what was measured, and by which constants."""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

from predictions import constants_lines, inside, is_within, note

BAND = (0.9, 1.1)


def test_a_prediction_is_close_up_to_both_ends_of_the_band():
    rows = [{"ratio": ratio} for ratio in (0.899, 0.9, 1.0, 1.1, 1.101)]
    assert [is_within(row, BAND) for row in rows] == [False, True, True, True, False]
    assert [note(row, BAND) for row in rows] == ["**outside**", "", "", "", "**outside**"]
    assert inside(rows, BAND) == "3 of 5 predictions lie within 0.9 to 1.1"


def test_constants_stand_in_a_block_of_their_own():
    assert constants_lines("Ours", "a = 1\n\n") == ["Ours:", "", "```text", "a = 1", "```", ""]
