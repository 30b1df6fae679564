"""Values arrive as the very types that they had, or do not travel."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import enum
import pathlib
import sys
import types
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from typing import Any, NamedTuple

import pytest

np = pytest.importorskip("numpy")

import herringbone
from herringbone.plain import pack, unpack

Pair = namedtuple("Pair", "x y")


class Typed(NamedTuple):
    name: str
    sizes: list[int]


@dataclasses.dataclass(frozen=True)
class Settings:
    rate: float
    layers: list[int] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        if self.rate < 0:
            raise ValueError("nobody makes such settings")


class Level(enum.IntEnum):
    LOW = 1


class Odd(enum.Enum):
    NOTHING = float("nan")


@dataclasses.dataclass
class Slotted:
    __slots__ = ("more", "rate")
    rate: float


class Extended(Pair):
    """A named tuple that takes attributes."""


class Mode(enum.Flag):
    FAST = 1
    EXACT = 2


class Mapped(dict):  # type: ignore[type-arg]
    pass


class Array(np.ndarray):  # type: ignore[misc, name-defined]
    pass


VALUES: list[Any] = [
    1 + 2j,
    range(0, 9, 3),
    slice(1, None, 2),
    bytearray(b"x"),
    b"y",
    OrderedDict(b=1, a=2),
    Counter("aab"),
    defaultdict(list, {1: [2]}),
    deque([1, 2], 3),
    argparse.Namespace(a=1, b=None, folder=pathlib.Path("/data/../a b")),
    types.SimpleNamespace(a=[1]),
    pathlib.Path("rel/\udc80"),
    pathlib.PurePosixPath("/"),
    datetime.date(2026, 2, 28),
    datetime.datetime(2026, 2, 28, 1, 2, 3, 4, tzinfo=datetime.timezone(datetime.timedelta(hours=-2))),
    datetime.time(3, 4),
    datetime.timedelta(1, 2, 3),
    Pair(1, [2]),
    Typed("a", [1]),
    Settings(0.5, [3, 4]),
    Level.LOW,
    Odd.NOTHING,
    datetime.datetime(2026, 10, 25, 2, 30, fold=1),
    datetime.time(2, 30, fold=1),
    datetime.timezone(datetime.timedelta(hours=1), "CET"),
    Mode.FAST | Mode.EXACT,
    True,
    np.float64(2.5),
    np.str_("text"),
    {(1, Level.LOW): 3, np.int64(4): 5, b"k": 6, None: 7},
]


def travelled(value: Any) -> Any:
    return unpack("test", pack("test", value))


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_arrives_as_its_own_type(value: Any) -> None:
    arrived = travelled({"it": [value]})["it"][0]
    assert type(arrived) is type(value) and arrived == value
    if isinstance(value, (datetime.datetime, datetime.time, datetime.timezone)):
        assert repr(arrived) == repr(value)
    if isinstance(value, dict):
        assert [type(key) for key in arrived] == [type(key) for key in value]
    if isinstance(value, (defaultdict, deque)):
        name = "default_factory" if isinstance(value, defaultdict) else "maxlen"
        assert getattr(arrived, name) == getattr(value, name)


def test_what_torch_has_arrives_as_its_own_type() -> None:
    torch = pytest.importorskip("torch")
    for value in [torch.bfloat16, torch.device("cpu"), torch.Size([1, 2])]:
        assert type(travelled(value)) is type(value) and travelled(value) == value
    parameter = travelled(torch.nn.Parameter(torch.ones(2), requires_grad=False))
    assert type(parameter) is torch.nn.Parameter and not parameter.requires_grad
    state = torch.nn.BatchNorm1d(3).state_dict()
    assert travelled(state)._metadata == state._metadata


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Mapped(a=1), r"is of the type Mapped; pass dict\(\.\.\.\) of it, since it would arrive as another type"),
        (np.zeros(1).view(Array), "is of the type Array; pass numpy.asarray"),
        (np.ma.masked_array([1], [True]), "is of the type MaskedArray; pass its data and its mask"),
        (defaultdict(lambda: 1), "is a defaultdict of <function .*, which is code"),
        (Level, "is of the type Enum.*; pass dictionaries"),
        (object(), "is of the type object; pass dictionaries"),
    ],
)
def test_other_values_do_not_travel(value: Any, text: str) -> None:
    with pytest.raises(TypeError, match=r"test: the object\['it'\] " + text):
        pack("test", {"it": value})


def test_all_that_a_value_has_travels_or_nothing() -> None:
    slotted = Slotted(0.5)
    slotted.more = [1]  # type: ignore[attr-defined]
    arrived = travelled(slotted)
    assert (type(arrived), arrived.rate, arrived.more) == (Slotted, 0.5, [1])
    pair = Extended(1, 2)
    pair.more = 3  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="a named tuple with attributes of its own: more; pass them separately"):
        pack("test", pair)


def test_elements_that_numpy_alone_does_not_know_do_not_travel() -> None:
    bits = pytest.importorskip("ml_dtypes").bfloat16
    with pytest.raises(TypeError, match="is an array of bfloat16, which numpy alone does not know"):
        pack("test", np.zeros(2, bits))


def test_a_class_that_others_cannot_find_does_not_travel() -> None:
    Local = namedtuple("Local", "x")
    with pytest.raises(TypeError, match="is a Local, a class that other ranks cannot find by its name"):
        pack("test", Local(1))


def test_a_class_is_neither_imported_nor_run_for_what_another_rank_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    value = Settings(0.5)
    object.__setattr__(value, "rate", -1.0)
    assert travelled(value).rate == -1.0, "no code of the class runs"
    packed = pack("test", Pair(1, 2))
    monkeypatch.delitem(sys.modules, __name__)
    with pytest.raises(herringbone.HerringboneError, match=r"test: the object holds a .*Pair, which this rank has not imported"):
        unpack("test", packed)


def test_no_other_class_is_made_for_what_another_rank_sent() -> None:
    packed = pack("test", Pair(1, 2)).tobytes().replace(b'"Pair"', b'"Mapped"')
    longer = len(b'"Mapped"') - len(b'"Pair"')
    length = int.from_bytes(packed[:8], "little") + longer
    with pytest.raises(herringbone.HerringboneError, match="Mapped, which this rank has not imported"):
        unpack("test", np.frombuffer(length.to_bytes(8, "little") + packed[8:], np.uint8))


def test_nothing_is_allocated_for_bytes_that_are_not_there() -> None:
    """Another rank says how large an array is; only what it has sent is believed."""
    claims = [
        b'{"arrays":[["<f4",[4,1073741824]]],"value":{"array":[4,1073741824]}}',
        b'{"arrays":[["<f4",[1]]],"value":{"array":[1]}}',  # one byte, which numpy would repeat
        b'{"arrays":[["O",[1]]],"value":{"array":[1]}}',
    ]
    for header in claims:
        packed = np.frombuffer(len(header).to_bytes(8, "little") + header + b"1", np.uint8)
        with pytest.raises(ValueError, match="would take .* bytes, and 1 are left|is not plain numbers"):
            unpack("call", packed)
    with pytest.raises(ValueError, match="its description would take 1099511627776 bytes, and 0 are left"):
        unpack("call", np.frombuffer((1 << 40).to_bytes(8, "little"), np.uint8))


def test_a_tensor_has_the_bytes_of_its_shape() -> None:
    pytest.importorskip("torch")
    header = b'{"arrays":[["|u1",[4]]],"value":{"tensor":["float32",[1073741824]]}}'
    packed = np.frombuffer(len(header).to_bytes(8, "little") + header + b"1234", np.uint8)
    with pytest.raises(herringbone.HerringboneError, match=r"a tensor of float32 and shape \[1073741824\] with 4 bytes"):
        unpack("call", packed)


def test_whole_numbers_of_any_length_travel() -> None:
    for number in (10**5000, -(10**5000), 1 << 1024, -(1 << 1023)):
        assert travelled([number]) == [number]


def test_a_value_that_contains_itself_does_not_travel() -> None:
    inside: list[Any] = []
    inside.append({"itself": inside})
    with pytest.raises(TypeError, match="test: the object contains itself, or is nested too deeply"):
        pack("test", inside)
