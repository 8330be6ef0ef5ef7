"""``protobuf``: messages to columns and back, with and without a registry."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, struct_pb2
from google.protobuf.message import Message
from grpc_tools import protoc
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import InvalidConfig
from headrace_streams import App, json, protobuf
from headrace_streams.adapters.protobuf_format import ProtobufFormat, message_in
from headrace_streams.core.errors import NotAllowed
from headrace_streams.core.formats.port import NotEncodable, Problem
from headrace_streams.testing import Driver, MemoryRegistry

PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
enum Tier { NONE = 0; GOLD = 1; }
message Order {
  string user = 1;
  double amount = 2;
  optional int32 count = 3;
  repeated string tags = 4;
  google.protobuf.Timestamp at = 5;
  Tier tier = 6;
  message Line { string item = 1; sint64 n = 2; }
  repeated Line lines = 7;
  Line first = 8;
  map<string, int64> points = 9;
  map<int32, Line> by_number = 10;
  oneof how { string card = 11; bool cash = 12; }
  google.protobuf.StringValue note = 13;
  bytes raw = 14;
  uint64 big = 15;
  repeated int32 numbers = 16;
}
message Small { int32 a = 1; string b = 2; }
message Node { Node next = 1; }
"""
EMPTY: dict[str, Any] = {
    "user": "",
    "amount": 0.0,
    "count": None,
    "tags": [],
    "at": None,
    "tier": "NONE",
    "lines": [],
    "first": None,
    "points": [],
    "by_number": [],
    "card": None,
    "cash": None,
    "note": None,
    "raw": b"",
    "big": 0,
    "numbers": [],
}
FULL: dict[str, Any] = {
    "user": "ann",
    "amount": 2.5,
    "count": 0,
    "tags": ["a", "b"],
    "at": datetime(2026, 1, 1, 0, 0, 0, 123_456, tzinfo=UTC),
    "tier": "GOLD",
    "lines": [{"item": "tea", "n": -1}, {"item": "", "n": 2}],
    "first": {"item": "tea", "n": -1},
    "points": [("x", 2**62)],
    "by_number": [("-7", {"item": "jam", "n": 0})],
    "card": None,
    "cash": False,
    "note": "",
    "raw": b"\xff",
    "big": 2**64 - 1,
    "numbers": [1, -1, 300],
}
Made = Callable[[str], type[Message]]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The descriptor set of ``PROTO``."""
    there = tmp_path_factory.mktemp("protos")
    (there / "shop.proto").write_text(PROTO)
    (there / "other.proto").write_text(
        'syntax = "proto3"; package shop; import "shop.proto"; message Other { Small small = 1; }'
    )
    google = str(Path(protoc.__file__).parent / "_proto")
    made = there / "shop.pb"
    asked = [f"-I{there}", f"-I{google}", f"--descriptor_set_out={made}", "--include_imports", "other.proto"]
    assert protoc.main(["protoc", *asked]) == 0
    return made


@pytest.fixture(scope="module")
def order(file: Path) -> ProtobufFormat:
    """The format of ``Order``."""
    return ProtobufFormat(message_in(file, "shop.Order"))


@pytest.fixture(scope="module")
def small(file: Path) -> ProtobufFormat:
    """The format of ``Small``."""
    return ProtobufFormat(message_in(file, "shop.Small"))


def values(*texts: str) -> pa.Array[Any]:
    """Bytes in hexadecimal digits."""
    return pa.array([bytes.fromhex(text) for text in texts], pa.binary())


def test_bytes_of_the_specification(small: ProtobufFormat) -> None:
    decoded = small.decode(values("089601", "120774657374696e67", "", "08ffffffffffffffffff01", "08011a00", "08010802"))
    assert decoded.table.to_pylist() == [
        {"a": 150, "b": ""},
        {"a": 0, "b": "testing"},
        {"a": 0, "b": ""},
        {"a": -1, "b": ""},
        {"a": 1, "b": ""},  # a field that is not known
        {"a": 2, "b": ""},  # the last counts
    ]
    written = small.encode(pa.table({"b": ["testing", None], "a": pa.array([150, None], pa.int32())}))
    assert written == values("089601120774657374696e67", "")


def test_every_kind_of_field(order: ProtobufFormat) -> None:
    table = pa.Table.from_pylist([FULL, EMPTY], order.schema)
    decoded = order.decode(order.encode(table))
    assert decoded.table.schema == order.schema
    assert decoded.table.to_pylist() == [FULL, EMPTY]
    assert order.decode(order.encode(table.slice(1))).table.to_pylist() == [EMPTY]


_TIMES = st.datetimes(datetime.fromisoformat("0001-01-02"), datetime.fromisoformat("9999-12-30"))
_LINES = st.fixed_dictionaries({"item": st.text(), "n": st.integers(-(2**63), 2**63 - 1)})
_ROWS = st.fixed_dictionaries(
    {
        "user": st.text(),
        "amount": st.floats(allow_nan=False),
        "count": st.none() | st.integers(-(2**31), 2**31 - 1),
        "tags": st.lists(st.text(), max_size=3),
        "at": st.none() | _TIMES.map(lambda at: at.replace(tzinfo=UTC)),
        "tier": st.sampled_from(["NONE", "GOLD", "7"]),
        "lines": st.lists(_LINES, max_size=3),
        "first": st.none() | _LINES,
        "points": st.dictionaries(st.text(), st.integers(0, 9), max_size=1).map(lambda of: list(of.items())),
        "by_number": st.dictionaries(st.integers(0, 9).map(str), _LINES, max_size=1).map(lambda of: list(of.items())),
        "card": st.none() | st.text(),
        "cash": st.none(),
        "note": st.none() | st.text(),
        "raw": st.binary(),
        "big": st.integers(0, 2**64 - 1),
        "numbers": st.lists(st.integers(-(2**31), 2**31 - 1), max_size=3),
    }
)


@given(st.lists(_ROWS, max_size=4), st.data())
@settings(max_examples=80, deadline=None)
def test_rows_are_read_as_they_were_written(order: ProtobufFormat, rows: list[Any], data: st.DataObject) -> None:
    written = order.encode(pa.Table.from_pylist(rows, order.schema))
    assert order.decode(written).table.to_pylist() == rows
    damaged: list[Any] = written.to_pylist()
    for value in list(damaged):
        at = data.draw(st.integers(0, len(value)))
        damaged.append(value[:at] + data.draw(st.binary(max_size=4)) + value[at + data.draw(st.integers(0, 4)) :])
    together = order.decode(pa.array(damaged, pa.binary()))
    alone = [order.decode(pa.array([value], pa.binary())) for value in damaged]
    assert str(together.table.to_pylist()) == str([row for one in alone for row in one.table.to_pylist()])
    assert together.problems == [
        Problem(at, problem.message) for at, one in enumerate(alone) for problem in one.problems
    ]


def test_what_is_wrong_is_told_of_its_value(order: ProtobufFormat) -> None:
    far = "2a0708ffffffffff7f"  # a time of the year 1,115,689
    decoded = order.decode(values("0a03616e6e", "0a05", far, "0a01ff"))
    assert [row["user"] for row in decoded.table.to_pylist()] == ["ann"]
    assert [problem.row for problem in decoded.problems] == [1, 2, 3]
    assert decoded.problems[0].message.startswith("the value is no shop.Order: ")
    assert decoded.problems[1].message == "at: the time is outside the years 1 to 9999"


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ({"count": pa.array([1, 2**31])}, "ValueError: "),
        ({"tags": pa.array([["a"], [None]])}, "ValueError: tags holds a null, which the encoding cannot"),
        ({"lines": pa.array([[], [None]], pa.list_(pa.struct([("n", pa.int64())])))}, "ValueError: lines holds a null"),
        ({"tier": pa.array(["GOLD", "BLUE"])}, "ValueError: invalid literal for int"),
        ({"big": pa.array([1, -1])}, "ValueError: "),
    ],
)
def test_a_row_that_cannot_be_written_is_named(order: ProtobufFormat, column: Any, message: str) -> None:
    with pytest.raises(NotEncodable, match=message) as told:
        order.encode(pa.table(column))
    assert told.value.row == 1


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ({"users": ["x"]}, r"protobuf\(shop.Order\) has no field 'users' \(user, amount, .*select\(\) what is to be"),
        ({"user": [1]}, "column 'user' is int64, and the field is string; cast it"),
        ({"count": ["1"]}, "column 'count' is string, and the field is int32; cast it"),
        ({"lines": [[{"items": "x"}]]}, r"has no field 'lines\[\].items' \(item, n\)"),
        ({"lines": [[{"item": 1}]]}, r"column 'lines\[\].item' is int64"),
        ({"lines": ["x"]}, "column 'lines' is string"),
        ({"points": pa.array([[(1, 1)]], pa.map_(pa.int64(), pa.int64()))}, "column 'points' is map"),
    ],
)
def test_columns_that_do_not_fit_are_refused(order: ProtobufFormat, column: Any, message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        order.encode(pa.table(column))


def test_messages_that_cannot_be_are_refused(file: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"protobuf: next: message shop\.Node holds itself, which no column can"):
        protobuf(file, "shop.Node")
    with pytest.raises(InvalidConfig, match="holds itself"):
        protobuf(struct_pb2.Struct)
    with pytest.raises(InvalidConfig, match=r"shop\.pb has no message 'Order'; write it with its package"):
        protobuf(file, "Order")
    (tmp_path / "x.pb").write_bytes(b"\xff")
    for name in ("x.pb", "none.pb"):
        with pytest.raises(InvalidConfig, match=r"is no descriptor set: .*; make it with protoc"):
            protobuf(tmp_path / name, "shop.Order")
    with pytest.raises(InvalidConfig, match="protobuf takes the class of a message, or the Path of a descriptor set"):
        protobuf(file)
    no_message: Any = int
    with pytest.raises(InvalidConfig, match="<class 'int'> is no class of a message"):
        protobuf(no_message)
    call: Any = protobuf
    with pytest.raises(InvalidConfig, match="protobuf: subject='s' is of a registry"):
        call(file, "shop.Small", subject="s")


def test_values_stand_behind_the_place_of_their_message(file: Path) -> None:
    registry = MemoryRegistry()
    app = App("framed", on_error="dead")
    stream = app.stream("in", value=protobuf(file, "shop.Small", registry="http://127.0.0.1:9"))
    stream.to("out", value=protobuf(file, "shop.Small", registry="http://127.0.0.1:9"))
    lines = app.stream("lines", value=json("item string, n bigint"))
    lines.to("written", value=protobuf(file, "shop.Order.Line", registry="http://127.0.0.1:9"))
    with Driver(app, registry=registry) as driver:
        driver.pipe("in", [{"a": 1, "b": "x"}])
        (record,) = driver.read_raw("out")
        # Any place of a message will do: it is told as [1] here, and by 0, which stands for the first.
        places = ["0202", "00", "8001", "8201", "01", ""]
        texts = ["0000000063" + place + "0801" for place in places]
        driver.pipe_raw("in", [None] * 6, [bytes.fromhex(text) for text in texts])
        assert [row["a"] for row in driver.read("out")] == [1, 1]
        assert len(driver.read_raw("dead")) == 4
        driver.pipe("lines", [{"item": "tea", "n": 1}])
        (line,) = driver.read_raw("written")
    assert record["value"] == b"\0" + registry.subjects["out-value"][0].to_bytes(4, "big") + bytes.fromhex(
        "0202" + "0801120178"
    )
    assert line["value"][5:] == bytes.fromhex("040000" + "0a03746561" + "1002")
    schema = registry.schemas[registry.subjects["out-value"][0]]
    described = descriptor_pb2.FileDescriptorProto.FromString(b64decode(schema.text))
    assert (schema.kind, described.name) == ("PROTOBUF", "shop.proto")


def test_a_file_that_imports_others_is_not_registered(file: Path) -> None:
    app = App("imports")
    stream = app.stream("in", value=json("small struct<a: int>"))
    with pytest.raises(NotAllowed, match=r"protobuf: other.proto imports shop.proto, .*put the messages in one file"):
        stream.to("out", value=protobuf(file, "shop.Other", registry=MemoryRegistry()))
    stream.to("plain", value=protobuf(file, "shop.Other"))


def test_a_message_without_values_is_set(order: ProtobufFormat) -> None:
    table = pa.Table.from_pylist([{"first": {"item": None, "n": None}}], order.schema)
    assert order.decode(order.encode(table)).table.to_pylist() == [{**EMPTY, "first": {"item": "", "n": 0}}]
