"""``arrow``: values that are tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import InvalidConfig
from headrace_streams import App, agg, arrow, json
from headrace_streams.core.errors import NotAllowed
from headrace_streams.core.formats.port import Problem
from headrace_streams.testing import Driver

ROWS = arrow("word string, n bigint")
ipc: Any = pa.ipc


def stream(table: pa.Table, **options: Any) -> bytes:
    """The table as one value."""
    out = pa.BufferOutputStream()
    with ipc.new_stream(out, table.schema, options=ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=2)
    return bytes(out.getvalue().to_pybytes())


def words(*rows: tuple[str, int]) -> bytes:
    """Rows as one value."""
    return stream(pa.table({"word": [word for word, _ in rows], "n": pa.array([n for _, n in rows], pa.int64())}))


def test_a_value_gives_its_rows() -> None:
    decoded = ROWS.decode(pa.array([words(("a", 1), ("b", 2), ("c", 3)), words(), words(("d", 4))]))
    assert decoded.table.to_pylist() == [{"word": word, "n": n} for word, n in zip("abcd", (1, 2, 3, 4), strict=True)]
    assert decoded.counts is not None
    assert (decoded.counts.tolist(), decoded.problems) == ([3, 0, 1], [])


def test_columns_are_found_by_name() -> None:
    table = pa.table({"n": pa.array([1], pa.int32()), "more": [1.0], "word": pa.array(["a"]).dictionary_encode()})
    assert ROWS.decode(pa.array([stream(table, compression="zstd")])).table.to_pylist() == [{"word": "a", "n": 1}]
    assert ROWS.decode(pa.array([stream(table.select(["n"]))])).table.to_pylist() == [{"word": None, "n": 1}]


def test_what_is_wrong_is_told_of_its_value() -> None:
    needed = arrow(pa.schema([pa.field("n", pa.int64(), nullable=False)]))
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["n", "n"])
    tables = [pa.table({"n": ["x"]}), pa.table({"n": pa.array([None], pa.int64())}), twice]
    decoded = needed.decode(pa.array([*map(stream, tables), stream(pa.table({"n": [7]}))]))
    assert decoded.table.to_pylist() == [{"n": 7}]
    assert decoded.problems == [
        Problem(0, "n: it is string, not int64"),
        Problem(1, "n: is missing or null, and may not be"),
        Problem(2, "n: the rows have this column 2 times"),
    ]


@given(st.binary(max_size=80), st.data())
@settings(max_examples=200, deadline=None)
def test_rubbish_fails_alone(rubbish: bytes, data: st.DataObject) -> None:
    good = words(("a", 1), ("b", 2))
    at = data.draw(st.integers(0, len(good)))
    damaged = good[:at] + rubbish + good[at + data.draw(st.integers(0, 8)) :]
    decoded = ROWS.decode(pa.array([rubbish, damaged, good]))
    assert decoded.table.slice(decoded.table.num_rows - 2).to_pylist() == [{"word": "a", "n": 1}, {"word": "b", "n": 2}]
    assert decoded.counts is not None
    assert len(decoded.counts) + len(decoded.problems) == 3
    assert decoded.table.num_rows == np.sum(decoded.counts)


def test_rows_have_the_key_and_time_of_their_record() -> None:
    def outcome(seed: int) -> list[Any]:
        app = App("words", on_error="dead")
        rows = app.stream("in", value=ROWS, key="who")
        rows.to("copy")
        rows.group_by("word", name="by-word").agg(n=agg.sum("n"), name="sums", emit="every").to("sums")
        with Driver(app, seed=seed) as driver:
            driver.pipe_raw("in", [b"ann", b"bob", b"cid"], [words(("a", 1), ("b", 2)), b"no", words(("a", 4))], time=9)
            copies = [(one["key"], one["timestamp_ms"]) for one in driver.read_raw("copy")]
            assert [one["value"] for one in driver.read_raw("dead")] == [b"no"]
            sums = [(row["word"], row["n"]) for row in driver.read("sums")]
        return [copies, sorted(sums)]

    assert outcome(0) == [[(b"ann", 9), (b"ann", 9), (b"cid", 9)], [("a", 1), ("a", 5), ("b", 2)]]
    assert all(outcome(seed) == outcome(0) for seed in range(1, 6))


def test_the_last_row_of_a_record_is_in_a_table() -> None:
    many = words(*[(f"w{n}", n) for n in range(300)], ("last", 7))
    for seed in range(6):
        app = App("table")
        app.table("in", value=ROWS, name="latest", key="who").to("out")
        with Driver(app, seed=seed) as driver:
            driver.pipe_raw("in", [b"ann", b"ann", b"bob"], [many, None, many])
            assert [(row["who"], row["word"]) for row in driver.store("latest")] == [("bob", "last")]


def test_one_row_is_written_for_each() -> None:
    app = App("written")
    app.stream("in", value=json("word string, n bigint")).to("out", value=ROWS)
    with Driver(app) as driver:
        driver.pipe("in", [{"word": "a", "n": 1}, {"word": None, "n": 2}])
        values = [one["value"] for one in driver.read_raw("out")]
    assert [ipc.open_stream(value).read_all().to_pylist() for value in values] == [
        [{"word": "a", "n": 1}],
        [{"word": None, "n": 2}],
    ]


def test_columns_and_keys_that_do_not_fit_are_refused() -> None:
    app = App("refused")
    rows = app.stream("in", value=json("word string, n string"))
    with pytest.raises(NotAllowed, match=r"arrow\(word, n\) does not write word; select\(\) what it writes"):
        rows.select("word").to("out", value=ROWS)
    with pytest.raises(NotAllowed, match="a key is one row, and a value of arrow may be many"):
        app.stream("other", value=ROWS, key=arrow("who string"))
    with pytest.raises(InvalidConfig, match="the schema has no column"):
        arrow("")
