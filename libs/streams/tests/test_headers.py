"""Headers of the records that a program writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import narwhals.stable.v2 as nw
import pytest
from libs.streams.tests.kit.feeding import Fed, dead

from headrace_streams import App, NotAllowed, avro, col, json, lit
from headrace_streams.core.outputs import Limits
from headrace_streams.plan.describe import as_data
from headrace_streams.spark.subset import steps_of
from headrace_streams.testing import Driver

OF_RECORDS = "n bigint, headers array<struct<key: string, value: binary>>"
TRACED: list[dict[str, Any]] = [
    {"n": 1, "_headers": {"trace": b"7", "by": b"me"}},
    {"n": 2},
    {"n": 3, "_headers": {"void": None}},
]


def written(app: App, rows: Sequence[dict[str, Any]], **more: Any) -> list[tuple[bytes | None, list[tuple[str, Any]]]]:
    """Value and headers of each record of ``out``."""
    with Driver(app, **more) as driver:
        driver.pipe("in", rows)
        records = driver.read_raw("out")
    return [(of["value"], [(header["key"], header["value"]) for header in of["headers"]]) for of in records]


def test_what_came_is_passed_on() -> None:
    """All of it, in its order, without a value too; and it is no part of the value."""
    app = App("h")
    app.stream("in", value=json("n bigint"), metadata=["headers"]).to("out", headers="headers")
    assert written(app, TRACED) == [
        (b'{"n":1}', [("trace", b"7"), ("by", b"me")]),
        (b'{"n":2}', []),
        (b'{"n":3}', [("void", None)]),
    ]


def test_columns_by_the_names_of_headers() -> None:
    """One that is named is a header instead, an expression leaves the columns as they are; null is no header."""
    app = App("h")
    orders = app.stream("in", value=json("n bigint, trace string, user string"))
    orders.to("out", headers={"trace": "trace", "of": col("user"), "kind": lit("order")})
    assert written(app, [{"n": 1, "trace": "7", "user": "ann"}, {"n": 2}]) == [
        (b'{"n":1,"user":"ann"}', [("trace", b"7"), ("of", b"ann"), ("kind", b"order")]),
        (b'{"n":2,"user":null}', [("kind", b"order")]),
    ]


def test_some_more_beside_what_came() -> None:
    app = App("h")
    orders = app.stream("in", value=json("n bigint"), metadata=["headers"])
    orders.to("out", headers=[{"first": lit("1")}, "headers", {"trace": lit("8"), "last": lit("2")}])
    assert written(app, TRACED[:2]) == [
        (b'{"n":1}', [("first", b"1"), ("trace", b"7"), ("by", b"me"), ("trace", b"8"), ("last", b"2")]),
        (b'{"n":2}', [("first", b"1"), ("trace", b"8"), ("last", b"2")]),
    ]


def test_a_function_gives_headers() -> None:
    app = App("h")
    orders = app.stream("in", value=json("n bigint"))
    orders.map(
        lambda row: {"n": row["n"], "headers": [{"key": "twice", "value": b"%d" % (2 * row["n"])}] * row["n"]},
        schema=OF_RECORDS,
    ).to("out", headers="headers")
    assert written(app, [{"n": 0}, {"n": 2}]) == [(b'{"n":0}', []), (b'{"n":2}', [("twice", b"4")] * 2)]


def test_a_schema_need_not_have_them() -> None:
    schema = {"type": "record", "name": "Order", "fields": [{"name": "n", "type": ["null", "long"]}]}
    app = App("h")
    app.stream("in", value=json("n bigint, trace string")).to("out", value=avro(schema), headers={"t": "trace"})
    assert written(app, [{"n": 1, "trace": "7"}]) == [(b"\x02\x02", [("t", b"7")])]


@pytest.mark.parametrize("seed", range(5))
def test_how_input_is_cut_is_not_seen(seed: int) -> None:
    """Behind a repartition too, where keys and texts may be coded."""
    app = App("h")
    orders = app.stream("in", value=json("n bigint, user string"), metadata=["headers"])
    moved = orders.key_by("user").repartition(name="by-user").filter(col("n") > 0)
    moved.to("out", headers=["headers", {"user": "user"}])
    rows = [{"n": n, "user": f"u{n % 3}", "_headers": {f"h{n}": b"%d" % n} if n % 2 else {}} for n in range(20)]
    found = written(app, rows, partitions=2, seed=seed)
    own = {n: [(f"h{n}", b"%d" % n)] if n % 2 else [] for n in range(20)}
    wanted = [(b'{"n":%d}' % n, [*own[n], ("user", b"u%d" % (n % 3))]) for n in range(1, 20)]
    assert sorted(found) == sorted(wanted)


def test_a_header_without_a_name_is_an_error_of_its_row() -> None:
    app = App("h", on_error="dead")
    pairs = [[{"key": "a", "value": b"1"}], [{"key": "b", "value": b"2"}, {"key": None, "value": b"3"}], []]
    stream = app.stream("in", value=json("n bigint")).map(
        lambda row: {"n": row["n"], "headers": pairs[row["n"]]}, schema=OF_RECORDS
    )
    stream.to("out", headers="headers")
    with Driver(app) as driver:
        driver.pipe("in", [{"n": n} for n in range(3)])
        assert [record["value"] for record in driver.read_raw("out")] == [b'{"n":0}', b'{"n":2}']
        (dead,) = driver.read_raw("dead")
    assert dead["value"] == b'{"n":1}'
    said = {header["key"]: header["value"] for header in dead["headers"]}
    assert said["headrace.error.message"] == b"one of its headers has no name"


def test_an_expression_that_fails_is_an_error_of_its_row_once() -> None:
    app = App("h", on_error="dead")
    number = col("text").cast(nw.Int64).cast(nw.String)
    app.stream("in", value=json("n bigint, text string")).to("out", headers={"number": number})
    with Driver(app) as driver:
        driver.pipe("in", [{"n": n, "text": text} for n, text in enumerate(["1", "one", "2"])])
        assert [record["headers"][0]["value"] for record in driver.read_raw("out")] == [b"1", b"2"]
        assert [record["value"] for record in driver.read_raw("dead")] == [b'{"n":1,"text":"one"}']


def test_headers_count_for_what_a_topic_takes() -> None:
    """A record is not sent that its topic would refuse, as a whole batch would fail then."""
    app = App("h", on_error="dead")
    app.stream("in", value=json("n bigint, large string")).to("out", headers={"large": "large"})
    fed = Fed(app, {"out": Limits(2_000)})
    large = ["x" * 900, "x" * 1_000, None]
    fed.feed("in", [(b"key", {"n": n, "large": text}, 0) for n, text in enumerate(large)])
    outputs = fed.commit()
    values = [record["value"] for of in outputs if of.topic == "out" for record in of.records.to_pylist()]
    assert values == [b'{"n":0}', b'{"n":2}']
    (letter,) = dead(outputs, "dead")
    said = dict(letter.headers)["headrace.error.message"] or b""
    assert said.startswith(b"its record for out has 1,0")


def test_a_dead_letter_has_the_headers_that_its_record_had() -> None:
    app = App("h", on_error="dead")
    app.stream("in", value=json("n bigint")).to("out")
    with Driver(app) as driver:
        driver.pipe_raw("in", [None], [b"rubbish"], headers=[{"void": None, "trace": b"7"}])
        (dead,) = driver.read_raw("dead")
    assert [(header["key"], header["value"]) for header in dead["headers"][:2]] == [("void", None), ("trace", b"7")]


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({"n": "n"}, r"the header 'n' is bigint; headers are text or bytes"),
        ({"x": "trase"}, r"the header 'x' cannot be computed: .*the columns are: n int64, trace string"),
        ({"x": 3}, r"the header 'x' is 3, which is no column"),
        ({"x": col("n").mean()}, r"mean\(\) needs other rows than its own"),
        ({7: "trace"}, "7 cannot be the name of a header; use text"),
        ("trace", r"headers='trace' is string; a column of all headers of a record is array<struct<key: string, value"),
        (3, r"headers is 3, which is no column"),
        ({}, r"headers={} names no header; write for example headers={'trace': 'trace_id'}"),
        ([], r"headers=\[\] names no header"),
        ({"a": "trace", "b": "other"}, None),
    ],
)
def test_what_is_no_header_is_refused(headers: Any, said: str | None) -> None:
    stream = App("h").stream("in", value=json("n bigint, trace string, other string"))
    if said is None:
        stream = stream.select("trace", "other")
        said = "all columns are headers, and none is left for the value"
    with pytest.raises(NotAllowed, match=said) as raised:
        stream.to("out", headers=headers)
    assert "test_headers.py" in str(raised.value)


def test_rows_without_columns_have_none_to_make_headers_of() -> None:
    stream = App("h").stream("in", value=json("n bigint")).map(lambda row: row)
    with pytest.raises(
        NotAllowed, match="headers are made of columns, and the function before gave no columns: say sch"
    ):
        stream.to("out", headers={"trace": lit("7")})


def test_the_description_says_it_and_spark_refuses_it() -> None:
    app = App("h")
    app.stream("in", value=json("n bigint, trace string")).to("out", headers={"trace": "trace"})
    (node,) = [
        node
        for part in as_data(app.name, app.graph)["sub_topologies"]
        for node in part["nodes"]
        if node["kind"] == "to"
    ]
    assert node["settings"] == {"topic": "out", "columns": {"n": "int64"}, "headers": [{"trace": "trace"}]}
    with pytest.raises(NotAllowed, match="on Spark records have no headers: leave headers= out"):
        steps_of(app)
