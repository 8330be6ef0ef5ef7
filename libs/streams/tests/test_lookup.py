"""Keys that are asked for: as values and as texts they are the bytes by which state is kept."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headrace_common.core.errors import Rejected
from headrace_streams import App, agg, col, json, value
from headrace_streams.core.formats.keys import encode_keys
from headrace_streams.core.formats.lookup import key_of, key_of_texts
from headrace_streams.plan.cut import sub_topologies

TEXT, INT = pa.field("airport", pa.string()), pa.field("hour", pa.int64())


@pytest.mark.parametrize(
    ("type_", "of", "text"),
    [
        (pa.string(), "12", "12"),
        (pa.int64(), 12, "12"),
        (pa.int32(), -3, "-3"),
        (pa.float64(), 12, "12"),
        (pa.bool_(), True, "true"),
        (pa.decimal128(9, 2), Decimal("1.50"), "1.50"),
        (pa.timestamp("ms", "UTC"), datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00Z"),
        (pa.date32(), datetime(2026, 1, 2, tzinfo=UTC).date(), "2026-01-02"),
    ],
)
def test_values_and_texts_are_the_key_that_rows_have(type_: pa.DataType, of: object, text: str) -> None:
    column: pa.Array[Any] = pa.array([of], type_)
    for keys, more, texts in (([pa.field("k", type_)], [], []), ([pa.field("k", type_), TEXT], ["HAM"], ["HAM"])):
        columns = [column, *(pa.array([one]) for one in more)]
        (wanted,) = encode_keys(columns).to_pylist()
        assert key_of("kept", keys, [of, *more]) == wanted
        assert key_of_texts("kept", keys, [text, *texts]) == wanted


def test_bytes_are_the_key_as_it_is() -> None:
    assert key_of("kept", [TEXT, INT], [b'["AA",1]']) == b'["AA",1]'


def test_without_columns_a_text_is_itself_and_several_are_guessed() -> None:
    assert key_of_texts("kept", [], ["12"]) == key_of("kept", [], ["12"]) == key_of("kept", [], [12]) == b"12"
    assert key_of_texts("kept", [], ["1e3"]) == b"1e3"
    assert key_of_texts("kept", [], ["AA", "12", "true"]) == key_of("kept", [], ["AA", 12, True]) == b'["AA",12,true]'


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ([12, 12], "12 is int"),
        (["HAM"], "1 value was given"),
        (["HAM", 1, 2], "3 values were given"),
        (["HAM", "noon"], "'noon' is str"),
        ([object(), 1], "is object"),
        (["HAM", 1 << 70], "is int"),
    ],
)
def test_another_key_is_refused_with_the_columns_of_the_store(values: list[object], why: str) -> None:
    with pytest.raises(Rejected, match="the keys of 'kept' are: airport string, hour int64") as refused:
        key_of("kept", [TEXT, INT], values)
    assert why in str(refused.value)


def test_texts_of_other_types_are_refused_too() -> None:
    with pytest.raises(Rejected, match="are: airport string, hour int64; 'noon' is no int64"):
        key_of_texts("kept", [TEXT, INT], ["HAM", "noon"])
    with pytest.raises(Rejected, match="are: airport string, hour int64; 1 value was given"):
        key_of_texts("kept", [TEXT, INT], ["HAM"])


@pytest.mark.parametrize("values", [[object()], [["a"]], [{"a": 1}], [float("nan")]])
def test_what_can_be_no_key_is_refused_where_columns_are_not_known(values: list[object]) -> None:
    with pytest.raises(Rejected, match="no record has such a key in 'kept'"):
        key_of("kept", [], values)


def test_no_key_and_the_null_key_are_refused() -> None:
    with pytest.raises(Rejected, match="say which key of 'kept': airport string"):
        key_of("kept", [TEXT], [])
    with pytest.raises(Rejected, match="there is no state of the null key in 'kept'"):
        key_of("kept", [TEXT], [None])


def test_a_plan_says_by_which_columns_state_is_kept() -> None:
    app = App("a")
    rows = app.stream("in", value=json("x bigint, y string, at timestamp"), key="user", timestamp="at")
    rows.group_by("x", "y", name="by-x").agg(n=agg.count(), name="columns").to("out")
    rows.group_by().agg(n=agg.count(), name="record-key").to("out")
    rows.filter(col("x") > 1).unique(within="1h", name="unique").to("out")
    rows.to_table(name="table").to("out")

    @rows.process(name="function", state={"n": value(int)})
    def count(row: dict[str, Any], state: Any, context: Any) -> None:
        state.n += 1

    count.to("out")
    bare = app.stream("bare", value=json("z bigint"))
    bare.unique(within="1h", name="bare").to("out")
    other = app.stream("other", value=json("z bigint, at timestamp"), key="user", timestamp="at")
    rows.join(other, within="1m", grace="1m", late="drop", suffix="_2", name="join").to("out")
    nodes = {node.name: node for part in sub_topologies(app.graph) for node in part.nodes if node.stateful}
    user = (pa.field("user", pa.string()),)
    assert {name: node.keys for name, node in nodes.items()} == {
        "columns": (pa.field("x", pa.int64()), pa.field("y", pa.string())),
        "record-key": user,
        "unique": user,
        "table": user,
        "function": user,
        "bare": (),
        "join": user,
    }
