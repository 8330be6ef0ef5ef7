"""What Spark would do otherwise is refused: by name, with its place in the program, all of it at once. No Spark."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import narwhals.stable.v2 as nw
import pyarrow as pa
import pytest

from headrace_streams import (
    App,
    NotAllowed,
    agg,
    bytes,
    col,
    counting,
    custom,
    json,
    lit,
    session,
    sliding,
    string,
    tumbling,
    value,
)
from headrace_streams.core.formats.port import Decoded
from headrace_streams.dsl.stream import Stream
from headrace_streams.spark.subset import steps_of

COLUMNS = "k string, n bigint, x double, at timestamp, l array<bigint>"
Build = Callable[[App, Stream], Any]


def refused(build: Build, **more: Any) -> list[str]:
    """The reasons, line by line."""
    app = App("refused", **more)
    stream = app.stream("in", value=json(COLUMNS), key="id", timestamp="at")
    build(app, stream)
    with pytest.raises(NotAllowed) as error:
        steps_of(app)
    first, *lines = str(error.value).split("\n")
    assert first == "the program refused cannot run on Spark with the same result:"
    return lines


def windowed(stream: Stream, **more: Any) -> Any:
    return stream.group_by("id").window(tumbling("1s"), late="drop").agg(name="a", emit="final", **more)


REFUSED: dict[str, tuple[Build, str]] = {
    "map": (lambda app, s: s.map(lambda row: row).to("out"), r"map \(.*\): Spark cannot do this"),
    "peek": (lambda app, s: s.peek(print).to("out"), r"peek \(.*\): Spark cannot do this"),
    "process": (
        lambda app, s: s.process(lambda row, state, context: row, state={"n": value(int)}, name="p").to("out"),
        r"process 'p' \(.*\): Spark cannot do this",
    ),
    "map_batches": (
        lambda app, s: s.map_batches(lambda table: table, schema=COLUMNS + ", id string").to("out"),
        r"map_batches \(.*\): Spark cannot do this",
    ),
    "foreach_batch": (lambda app, s: s.foreach_batch(print), r"foreach_batch \(.*\): Spark cannot do this"),
    "unique": (lambda app, s: s.unique(within="1h", name="u").to("out"), r"unique 'u' \(.*\): Spark cannot do this"),
    "aggregates without a window": (
        lambda app, s: s.group_by("id").agg(n=agg.count(), name="a").to("out"),
        r"agg 'a' \(.*\): aggregates without a window change with each row: say window",
    ),
    "changes": (
        lambda app, s: s.group_by("id").window(tumbling("1s"), late="drop").agg(n=agg.count(), name="a").to("out"),
        r"agg 'a' \(.*\): emit='changes' tells how results change with each commit: say emit='final'",
    ),
    "sliding windows": (
        lambda app, s: (
            s.group_by("id").window(sliding("1s"), late="drop").agg(n=agg.count(), name="a", emit="final").to("out")
        ),
        r"agg 'a' \(.*\): Spark cannot do this",
    ),
    "count windows": (
        lambda app, s: s.group_by("id").window(counting(3)).agg(n=agg.count(), name="a", emit="final").to("out"),
        r"agg 'a' \(.*\): Spark cannot do this",
    ),
    "late rows of windows": (
        lambda app, s: (
            s.group_by("id").window(session("1s"), late="late").agg(n=agg.count(), name="a", emit="final").to("out")
        ),
        r"to \(.*\): Spark drops the late rows of agg 'a' \(.*\): say late='drop' there",
    ),
    "late rows of joins": (
        lambda app, s: s.join(other(app), within="1s", late="late", suffix="_2", name="j").to("out"),
        r"to \(.*\): Spark drops the late rows of join 'j' \(.*\): say late='drop' there",
    ),
    "order of rows": (
        lambda app, s: windowed(s, of=agg.first("n")).to("out"),
        r"agg 'a' \(.*\): of=first\(…\) depends on the order of the rows or is computed otherwise on Spark",
    ),
    "sketches": (lambda app, s: windowed(s, of=agg.quantile("n", 0.5)).to("out"), r"agg 'a' \(.*\): of=quantile\(…\)"),
    "fold": (
        lambda app, s: windowed(s, of=agg.fold("n", 0, lambda a, b: a + b, type="bigint")).to("out"),
        r"agg 'a' \(.*\): of=fold\(…\)",
    ),
    "expressions": (
        lambda app, s: s.filter(col("n") // 2 > 1).to("out"),
        r"filter \(.*\): //\(\) may give other values",
    ),
    "expressions inside": (
        lambda app, s: s.with_columns(y=nw.coalesce(col("x").round(2), lit(0.0))).to("out"),
        r"with_columns \(.*\): round\(\) may give other values",
    ),
    "two steps with state": (
        lambda app, s: twice(s),
        r"agg 'b' \(.*\): it stands behind agg 'a' \(.*\); a query has one step with state",
    ),
    "tables as changes": (
        lambda app, s: app.table("t", value=json("a string"), key="k", name="t").to("out"),
        r"latest \(.*\): on Spark a table can only be joined to a stream",
    ),
    "global tables": (
        lambda app, s: s.join(app.global_table("g", value=json("b string"), key="key"), on="k").to("out"),
        r"join_global \(.*\): Spark cannot do this",
    ),
    "tables of streams": (
        lambda app, s: s.join(other(app).to_table(name="t"), suffix="_2").to("out"),
        r"table 't' \(.*\): on Spark a table is read from a topic: app.table",
    ),
    "formats of one's own": (
        lambda app, s: app.stream("more", value=custom(decoded, encoded, schema="a string")).to("out"),
        r"stream \(.*\): on Spark values and keys are json, struct, string or bytes",
    ),
    "names": (
        lambda app, s: s.rename(**{"n": "a.b"}).to("out"),
        r"rename \(.*\): the name 'a.b' cannot be that of a column",
    ),
    "types": (
        lambda app, s: s.with_columns(n=col("n").cast(nw.UInt8)).to("out"),
        r"with_columns \(.*\): 'n' is uint8, which Spark does not have: cast it",
    ),
    "nothing written": (lambda app, s: None, "it writes no topic"),
}


def other(app: App) -> Stream:
    return app.stream("other", value=json(COLUMNS), key="id", timestamp="at")


def twice(stream: Stream) -> None:
    once = windowed(stream, n=agg.count())
    again = once.group_by("id").window(tumbling("2s"), late="drop")
    again.agg(n=agg.sum("n"), name="b", emit="final").to("out")


def decoded(values: pa.Array[Any]) -> Any:
    return Decoded(pa.table({"a": values.cast(pa.string())}))


def encoded(table: pa.Table) -> Any:
    return table["a"].cast(pa.binary())


@pytest.mark.parametrize("name", REFUSED)
def test_what_spark_would_do_otherwise(name: str) -> None:
    build, reason = REFUSED[name]
    lines = refused(build)
    assert any(re.match("- " + reason, line) for line in lines), lines


def test_all_of_it_is_told_at_once() -> None:
    def build(app: App, stream: Stream) -> None:
        stream.filter(col("n") // 2 > 1).with_columns(y=col("x").round(1)).to("a")
        stream.map(lambda row: row).to("b")

    lines = refused(build, on_error="dead")
    assert [line.split(" (")[0] for line in lines[:3]] == ["- stream", "- filter", "- filter"]
    assert lines[-1].endswith("Spark cannot do this with the same result")
    assert all("test_spark_refusals.py:" in line for line in lines)
    assert "say on_error='fail' or 'skip'" in lines[0]


def test_of_history_there_is_the_state_of_aggregates() -> None:
    app = App("history")
    stream = app.stream("in", value=json(COLUMNS), key="id", timestamp="at")
    stream.group_by("id").agg(n=agg.count(), name="a").to("out")
    stream.group_by("id").window(tumbling("1s"), late="drop").agg(n=agg.count(), name="b").to("more")
    assert steps_of(app, history=True)
    stream.group_by("id").agg(n=agg.count(), name="c", emit="every").to("every")
    stream.select("id").join(app.table("t", value=json("a string"), key="id", name="t")).to("joined")
    stream.join(other(app), within="1s", late="drop", suffix="_2", name="j").to("pairs")
    with pytest.raises(NotAllowed) as error:
        steps_of(app, history=True)
    told = [re.sub(r"\(.*?\)", "", line) for line in str(error.value).split("\n")[1:]]
    assert told == [
        "- agg 'c' : emit='every' tells how results change with each row: say emit='final'",
        "- table 't' : of history only the state of aggregates is computed",
        "- join 'j' : of history only the state of aggregates is computed",
    ]


def test_what_spark_can_do_is_told_in_steps() -> None:
    app = App("fine")
    stream = app.stream("in", value=json(COLUMNS), key="id", timestamp="at")
    windowed(stream, n=agg.count(), d=agg.distinct("x")).to("out")
    stream.explode("l").select("l", "id").key_by("l", "id").to("more", value=json)
    stream.select("k").to("text", value=string)
    stream.select(b=col("k")).drop_nulls().to("late", value=string)
    app.stream("raw", value=bytes).to("copies", value=bytes)
    assert [step.schema.names for step in steps_of(app) if step.node.topics and step.node.inputs][:2] == [
        ["id", "window_start", "window_end", "n", "d"],
        ["l", "id"],
    ]


def test_a_branch_may_be_called_late() -> None:
    app = App("fine")
    stream = app.stream("in", value=json(COLUMNS))
    for name, branch in stream.split(late=col("n") > 1, out=lit(True)).items():
        branch.to(name)
    assert steps_of(app)
