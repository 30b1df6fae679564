"""docs/faults.md says what the record says, the record has all faults, and the judges find what they are to find."""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

import pytest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

import page
import proxy
from faults import FAULTS, is_wrong
from injection import ABORTED, HUNG, NOT_TRIED, SILENT, REPORTED, WENT_ON, blames, ending_of, named_in


@pytest.fixture(scope="module")
def record() -> Any:
    return json.loads((ROOT / "record" / "faults.json").read_text())


def test_the_page_is_that_of_the_record(record: dict[str, Any]) -> None:
    assert (ROOT / "docs" / "faults.md").read_text() == page.rendered(record), "run `make faults`"


def test_the_record_has_every_fault_on_every_system_and_all_as_promised(record: dict[str, Any]) -> None:
    found = {(each["fault"], each["system"]) for each in record["injections"]}
    assert found == {(fault.name, system) for fault in FAULTS for system in fault.systems}
    assert NOT_TRIED not in {each["ending"] for each in record["injections"]}
    by_name = {fault.name: fault for fault in FAULTS}
    assert [each for each in record["injections"] if is_wrong(by_name[each["fault"]], each)] == []


def test_what_is_not_as_promised_is_found() -> None:
    killed = FAULTS[0]
    right = {"system": "herringbone", "ending": REPORTED, "wrong": 0, "aborted": 0}
    assert not is_wrong(killed, right)
    assert not is_wrong(killed, {**right, "system": "gloo", "ending": HUNG}), "Gloo promises nothing here"
    for harm in ({"ending": HUNG}, {"ending": WENT_ON}, {"wrong": 1}, {"aborted": 1}):
        assert is_wrong(killed, {**right, **harm}), harm


@pytest.mark.parametrize(
    ("statuses", "silent", "expected"),
    [
        ([0, 0], False, WENT_ON),
        ([0, 0], True, SILENT),
        ([42, 42], False, REPORTED),
        ([42, 0], False, SILENT),
        ([42, -6], False, ABORTED),
        ([42, None], False, HUNG),
        ([70, 42], False, SILENT),
    ],
)
def test_an_ending_is_that_of_the_statuses(statuses: list[int | None], silent: bool, expected: str) -> None:
    assert ending_of(statuses, silent) == expected


def test_a_rank_is_named_by_its_number_and_not_by_a_part_of_another() -> None:
    own = "herringbone, on rank 0: all_reduce of 8 f32, sum (operation 3): "
    assert named_in(f"{own}rank 3 is lost") == {3}
    assert named_in(f"{own}ranks 1, 12 and 13 are lost") == {1, 12, 13}
    assert named_in(f"{own}ranks 1-3, 5 are lost") == {1, 2, 3, 5}
    assert named_in("connection closed by 10.78.3.2") == set()


def test_who_blames_somebody_else_beside_does_not_blame_the_right_rank() -> None:
    assert blames("rank 3 is lost", [2, 3]) and blames("ranks 2, 3 are lost", [2, 3])
    assert not any(blames(text, [3]) for text in ("ranks 2, 3 are lost", "rank 13 is lost", "it is lost"))


def frame(kind: int, payload: bytes) -> bytes:
    """A frame as far as the proxy looks at it."""
    head = bytearray(proxy.HEADER_BYTES)
    head[4], head[32:36] = kind, len(payload).to_bytes(4, "little")
    return bytes(head) + payload


def passed(harm: proxy.Harm, frames: list[bytes], piece: int) -> bytes:
    """What a harm makes of frames that come in pieces of so many bytes."""
    data = b"".join(frames)
    return b"".join(harm.frames(data[at : at + piece]) for at in range(0, len(data), piece))


FRAMES = [frame(1, b"a" * 100), frame(3, b""), frame(1, b"b"), frame(1, b"cc")]


def test_the_proxy_flips_one_bit_whatever_the_pieces() -> None:
    for piece in (1, 7, 1000):
        flip = proxy.Flip(70, 5)
        data = passed(flip, FRAMES, piece)
        whole = b"".join(FRAMES)
        differing = [at for at in range(len(whole)) if whole[at] != data[at]]
        assert differing == [70] and whole[70] ^ data[70] == 1 << 5 and flip.done


def test_the_proxy_doubles_swaps_and_adds_whole_frames() -> None:
    first, credit, second, third = FRAMES
    for piece in (1, 7, 1000):
        assert passed(proxy.Doubled(0, 1), FRAMES, piece) == first + credit + second + first + third
        assert passed(proxy.Foreign(1, [third]), FRAMES, piece) == first + credit + third + second + third
        record = proxy.Recorded()
        assert passed(record, FRAMES, piece) == b"".join(FRAMES) and record.messages == [first, second, third]
    assert passed(proxy.Swapped(1), FRAMES, 1000) == first + credit + third + second
    assert passed(proxy.Swapped(1), FRAMES, 1) == b"".join(FRAMES), "nothing followed at once"
