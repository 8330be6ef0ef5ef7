"""
What stands on disks and in topics stays readable: bytes as the first version wrote them.

A change here is a change of a format: raise its version and read the old one too, or refuse it by name.
"""

from __future__ import annotations

from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace_streams.core.operators import hop
from headrace_streams.core.operators.hop import Flush
from headrace_streams.core.operators.table_rows import TableRows
from headrace_streams.core.rows import TIMESTAMP, Coded, coded, with_system
from headrace_streams.core.state.buffer import JoinStore
from headrace_streams.core.state.changelog import CONTROL, NotReadable, Progress, prefix, rows
from headrace_streams.core.state.lifting import Lifting
from headrace_streams.core.state.memory import MemoryCold
from headrace_streams.core.state.objects import ObjectStore, Value
from headrace_streams.core.state.slots import Field, KeyedStore, Layout, prefix_of, start_of

PROGRESS = Progress({"orders": 7}, {"orders": 1_000, "": 900}, {"topic orders": "a1"})
CONTROL_ROW = bytes.fromhex(
    "84a17601a17081a66f726465727307a17782a66f7264657273cd03e8a0cd0384a16281ac746f706963206f7264657273a26131"
)
PACKED = bytes.fromhex("010300000000000000000000000000f83f9193a16102c0")
STATE = bytes.fromhex("0182a47365656e03a474616773" + "92a161a162")
ROW_OF_A_TABLE = bytes.fromhex("01fdffffffffffffff01000000000000000000070000000000000092a2c3a49202c0")
FLUSH_HEAD = bytes.fromhex("0101000000020000000000000384")


def test_the_control_row() -> None:
    assert PROGRESS.encode() == CONTROL_ROW
    assert Progress.decode(CONTROL_ROW) == PROGRESS
    with pytest.raises(NotReadable, match="upgrade this worker"):
        Progress.decode(CONTROL_ROW.replace(b"\xa1v\x01", b"\xa1v\x02"))
    for other in (b"", b"by hand", b"\x01", b"\x80"):
        with pytest.raises(NotReadable, match="was not written by Streams"):
            Progress.decode(other)


def test_keys_of_a_changelog() -> None:
    assert prefix("totals") == b"\x06totals"
    assert rows({"totals": [(b"ann", b"1")]}, PROGRESS) == [(b"\x06totalsann", b"1"), (CONTROL, CONTROL_ROW)]
    assert CONTROL == b"\x00"


def test_the_start_of_a_window() -> None:
    assert prefix_of(10_000) == bytes.fromhex("8000000000002710")
    assert prefix_of(-1) == bytes.fromhex("7fffffffffffffff")
    assert start_of(prefix_of(-1) + b"key") == -1


def test_a_slot() -> None:
    layout = Layout(
        [Field(np.dtype(np.int64), 0), Field(np.dtype(np.float64), 0.0), Field(np.dtype(object), lambda: None)]
    )
    kept = np.empty(1, object)
    kept[0] = ["a", 2, None]
    columns = [np.array([3]), np.array([1.5]), kept]
    assert layout.pack(columns, np.array([0])) == [PACKED]
    with pytest.raises(NotReadable, match="not written by this version"):
        layout.unpack([PACKED, b"by hand"])
    number, real, objects = layout.unpack([PACKED])
    assert (number[0], real[0], objects[0]) == (3, 1.5, ["a", 2, None])


def test_a_row_of_a_table() -> None:
    schema = pa.schema({"n": pa.int32(), "x": pa.float64(), "s": pa.string(), "l": pa.list_(pa.date32())})
    table = TableRows(schema)
    row: dict[str, Any] = {"n": -3, "x": None, "s": "ä", "l": [date(1970, 1, 3), None]}
    cold = MemoryCold()
    store = KeyedStore(table.layout)
    store.open(cold)
    given = pa.Table.from_pylist([row], table.schema).append_column("_time", pa.array([7], TIMESTAMP))
    table.put(store.slots, store.places(Coded(np.array([0]), [b"ann"])), given)
    assert store.changes() == [(b"ann", ROW_OF_A_TABLE)]
    cold.write(store.changes())
    again = KeyedStore(table.layout)
    again.open(cold)
    slots = again.known([b"ann", b"bob"])
    assert table.take(again.slots, slots).to_pylist() == [row, dict.fromkeys(row)]
    assert table.times(again.slots, slots)[0] == 7


def test_objects_and_timers() -> None:
    store = ObjectStore({"seen": Value(int, 0), "tags": Value(list, [])})
    store.open(MemoryCold())
    store.set(b"ann", {"seen": 3, "tags": ["a", "b"]})
    store.timers.add((1_000, b"ann", "check"))
    state, timer = store.changes()
    assert state == (b"sann", STATE)
    assert timer == (bytes.fromhex("7480000000000003e892c403616e6ea5636865636b"), b"")
    cold = MemoryCold()
    cold.write([state, timer])
    again = ObjectStore(dict(store.values))
    again.open(cold)
    assert again.of(b"ann") == {"seen": 3, "tags": ["a", "b"]}
    assert again.timers.take_due(1_000) == (1_000, b"ann", "check")


def test_objects_of_another_version() -> None:
    """The version stands beside the values, which are as ever."""
    store = ObjectStore({"seen": Value(int, 0), "tags": Value(list, [])}, Lifting(2))
    store.open(MemoryCold())
    store.set(b"ann", {"seen": 3, "tags": ["a", "b"]})
    ((key, value),) = store.changes()
    assert (key, value) == (b"sann", STATE[:1] + b"\x83" + STATE[2:] + bytes.fromhex("a10202"))
    cold = MemoryCold()
    cold.write([(key, value)])
    store.open(cold)
    assert store.of(b"ann") == {"seen": 3, "tags": ["a", "b"]}


def test_a_flush() -> None:
    assert hop.encode(Flush(2, 900, None, True)) == FLUSH_HEAD
    assert hop.decode(FLUSH_HEAD) == Flush(2, 900, None, True)
    table = with_system(
        pa.table({"n": [1, 2]}),
        pa.array([b"a", None], pa.binary()),
        np.array([5, 6]),
        np.array([5, 6]),
        np.array([0, 1]),
    ).drop_columns(["_row"])
    value = hop.encode(Flush(2, 900, table))
    found = hop.decode(value)
    assert value[:14] == FLUSH_HEAD[:1] + b"\x00" + FLUSH_HEAD[2:]
    assert found.rows is not None
    assert found.rows.equals(table)
    with pytest.raises(NotReadable, match="upgrade all workers"):
        hop.decode(b"\x02" + value[1:])


def test_rows_of_a_join() -> None:
    def table(times: list[int]) -> pa.Table:
        user = pa.table({"n": times})
        none = np.zeros(len(times), np.int64)
        return with_system(user, pa.array([b"a"] * len(times), pa.binary()), np.array(times), none, none)

    def add(store: JoinStore, side: int, times: list[int]) -> None:
        rows = table(times)
        store.add(side, coded(rows["_key"]), rows)

    schema = pa.schema({"n": pa.int64()})
    store = JoinStore([schema, schema], 1_000, [True, True])
    store.open(MemoryCold())
    add(store, 0, [1, 999, 3])
    add(store, 1, [1_000])
    store.sides[0].meet(np.array([0, 2]))
    met, left, right = store.changes()
    assert met == (b"ml" + bytes.fromhex("80000000000003e70000000000000000"), bytes.fromhex("01a0"))
    assert left[0] == b"rl" + met[0][2:]
    assert right[0] == b"rr" + bytes.fromhex("80000000000003e80000000000000001")
    assert left[1] is not None
    assert left[1][:1] == b"\x01"
    kept = pa.ipc.open_stream(left[1][1:]).read_all()
    assert kept.to_pydict() == {"n": [1, 999, 3], "_key": [b"a"] * 3, "_time": table([1, 999, 3])["_time"].to_pylist()}
    cold = MemoryCold()
    cold.write([met, left, right])
    again = JoinStore([schema, schema], 1_000, [True, True])
    again.open(cold)
    assert again.sides[0].met(np.arange(3)).tolist() == [True, False, True]
    other = JoinStore([pa.schema({"m": pa.int64()}), schema], 1_000, [True, True])
    with pytest.raises(NotReadable, match="other columns than the program"):
        other.open(cold)
    for value, message in ((b"\x02" + left[1][1:], "by this version"), (left[1][:40], "are broken")):
        cold.write([(left[0], value)])
        with pytest.raises(NotReadable, match=message):
            again.open(cold)


def test_a_row_that_no_changelog_takes_is_named() -> None:
    from headrace_streams.core.errors import StateFailed
    from headrace_streams.core.state.changelog import ROW_BYTES_MAX, check_sizes

    large = [(prefix("totals") + b"ann", b"x" * ROW_BYTES_MAX)]
    with pytest.raises(StateFailed, match="the state 'totals' of key b'ann' has 8,384,"):
        check_sizes(large)
    check_sizes([(prefix("totals") + b"ann", b"x" * 1_000), (CONTROL, CONTROL_ROW), (b"\x06totalsbob", None)])
