"""What a program may ask to know of the records that it reads."""

from __future__ import annotations

import re
from typing import Any

import pytest

from headrace_streams import App, NotAllowed, agg, col, json
from headrace_streams.plan.describe import as_data
from headrace_streams.spark.subset import steps_of
from headrace_streams.testing import Driver

ALL = ("topic", "partition", "offset", "timestamp", "headers")


def echo(app: App, *metadata: str, **more: Any) -> App:
    def shown(row: dict[str, Any]) -> dict[str, Any]:
        headers = {one["key"]: one["value"].decode() for one in row.pop("headers", ())}
        return {**row, **({"trace": headers.get("trace")} if "headers" in metadata else {})}

    app.stream(["a", "b"], value=json("n bigint"), metadata=metadata, **more).map(shown).to("out")
    return app


def test_a_row_has_what_is_asked_of_its_record() -> None:
    with Driver(echo(App("meta"), *ALL), partitions=2, seed=3) as driver:
        driver.pipe("a", [{"n": 1}, {"n": 2, "_headers": {"x": b"0", "trace": b"7"}}], partition=1, time=5)
        driver.pipe("b", [{"n": 3}], partition=0, time=1_000)
        found = sorted(driver.read("out"), key=lambda row: row["n"])
    a = {"topic": "a", "partition": 1, "timestamp": "1970-01-01T00:00:00.005000+00:00"}
    assert found == [
        {"n": 1, "offset": 0, "trace": None, **a},
        {"n": 2, "offset": 1, "trace": "7", **a},
        {"n": 3, "topic": "b", "partition": 0, "offset": 0, "timestamp": "1970-01-01T00:00:01+00:00", "trace": None},
    ]


def test_rows_that_are_left_out_do_not_move_offsets() -> None:
    app = App("meta", on_error="skip")
    app.stream("a", value=json("n bigint"), metadata=["offset"]).filter(col("offset") != 3).to("out")
    with Driver(app) as driver:
        driver.pipe_raw("a", [None] * 5, [b"rubbish", None, b'{"n": 1}', b'{"n": 2}', b'{"n": 3}'])
        assert [(row["n"], row["offset"]) for row in driver.read("out")] == [(1, 2), (3, 4)]


def test_a_row_keeps_them_behind_a_repartition() -> None:
    app = App("meta")
    stream = app.stream(re.compile("t.*"), name="t", value=json("k string"), metadata=["topic", "offset", "headers"])
    stream.group_by("k", name="by-k").agg(topics=agg.collect("topic", 9), last=agg.max("offset"), name="s").to("out")
    with Driver(app, partitions=2) as driver:
        driver.pipe("t1", [{"k": "x"}, {"k": "x"}], partition=0)
        driver.pipe("t2", [{"k": "x", "_headers": {"h": b"1"}}], partition=1)
        (row,) = driver.store("s")
    assert (sorted(row["topics"]), row["last"]) == (["t1", "t1", "t2"], 1)


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        (["ofset"], "metadata 'ofset' is not there; choose of topic, partition, offset, timestamp, headers"),
        ("offsets", "metadata 'offsets' is not there"),
        (3, "metadata 3 is not there"),
        ([["offset"]], r"metadata \['offset'\] is not there"),
        (["n"], "metadata 'n' is not there"),
        (["offset", "offset"], "would be there twice"),
    ],
)
def test_what_is_not_there_is_refused(metadata: Any, said: str) -> None:
    with pytest.raises(NotAllowed, match=said):
        App("meta").stream("a", value=json("n bigint"), metadata=metadata)


@pytest.mark.parametrize("columns", [{"value": json("offset bigint")}, {"value": json("n bigint"), "key": "offset"}])
def test_a_column_of_that_name_is_refused(columns: dict[str, Any]) -> None:
    with pytest.raises(NotAllowed, match="metadata 'offset' would be a second column of that name"):
        App("meta").stream("a", metadata="offset", **columns)


def test_the_description_says_it_and_spark_refuses_it() -> None:
    app = App("meta")
    app.stream("a", value=json("n bigint"), metadata="offset").to("out")
    assert '"metadata": ["offset"]' in str(as_data(app.name, app.graph)).replace("'", '"')
    with pytest.raises(NotAllowed, match="leave metadata= out"):
        steps_of(app)
