"""Programs that cannot be built: the message says where, and what would be right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace_streams import (
    App,
    NotAllowed,
    Stream,
    Table,
    agg,
    col,
    counting,
    custom,
    hopping,
    json,
    lit,
    session,
    sliding,
    tumbling,
    when,
)
from headrace_streams.plan.cut import sub_topologies
from headrace_streams.testing import Driver

NO_TEXT: Any = 5


def stream() -> Stream:
    return App("refused").stream("in", value=json("n bigint, m double, s string, l array<int>, b boolean"), key="k")


def table(**given: Any) -> Table:
    asked = {"topic": "t", "value": json("n bigint"), "key": "k", "name": "t", **given}
    return App("refused").table(asked.pop("topic"), **asked)


def grouped() -> Any:
    return stream().group_by("k")


def count(group: Any, **more: Any) -> Stream:
    return group.agg(n=agg.count(), name="g", **more)


def near(
    other: Any = None,
    key_type: str = "string",
    rename: dict[str, str] | None = None,
    then: Callable[[Stream], Stream] = lambda left: left,
    **more: Any,
) -> Any:
    app = App("refused")
    left = app.stream("a", value=json("n bigint, m bigint, k string")).key_by("k").repartition(name="left")
    if other is None:
        other = app.stream("b", value=json(f"n bigint, k {key_type}")).key_by("k").repartition(name="right")
    left = then(left.rename(**(rename or {})))
    return left.join(other, **{"within": 1, "late": "drop", "name": "j", "suffix": "_b", **more})


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    # names of columns
    "filter": (lambda: stream().filter(col("x") > 1), "filter .*: .*'x'.*; the columns are: n int64, m double"),
    "with_columns": (lambda: stream().with_columns(y=col("x")), "with_columns .*'x'.*; the columns are: n int64"),
    "select": (lambda: stream().select("x"), "select .*'x'.*; the columns are: n int64"),
    "rename": (lambda: stream().rename(x="y"), "rename .*: there is no column 'x'; the columns are: n int64"),
    "rename to another": (lambda: stream().rename(n="m"), "rename .*: the name 'm' would be there twice"),
    "drop_nulls": (lambda: stream().drop_nulls("x"), "drop_nulls .*: there is no column 'x'"),
    "explode": (lambda: stream().explode("x"), "explode .*: there is no column 'x'"),
    "explode a number": (lambda: stream().explode("n"), "'n' is int64, and only a list can be exploded"),
    "key_by": (lambda: stream().key_by("x"), "key_by .*: there is no column 'x'"),
    "key_by nothing": (lambda: stream().key_by(), "key_by .* needs a column"),
    "group_by": (lambda: stream().group_by("x"), "group_by .*: there is no column 'x'"),
    "agg": (lambda: grouped().agg(n=agg.sum("x"), name="g"), "agg sum .*: there is no column 'x'"),
    "reserved": (lambda: stream().with_columns(_x=col("n")), "'_x' is reserved; columns must not begin with an under"),
    "select nothing": (lambda: stream().select(), "select .* needs a column"),
    # expressions
    "mean": (lambda: stream().filter(col("n").mean() > 1), r"mean\(\) needs other rows than its own.*group_by"),
    "shift": (lambda: stream().with_columns(y=col("n").shift(1)), r"shift\(\) needs other rows.*process\(\)"),
    "cum_sum": (lambda: stream().select(y=col("n").cum_sum()), r"cum_sum\(\) needs other rows"),
    "inside": (lambda: stream().filter((lit(1) + col("n").max()) > 1), r"max\(\) needs other rows"),
    "in when": (lambda: stream().with_columns(y=when(col("n").max() > 1).then(1)), r"max\(\) needs other rows"),
    "in agg": (lambda: grouped().agg(n=agg.sum(col("n").max()), name="g"), r"agg 'g' .*max\(\) needs other rows"),
    "in split": (lambda: stream().split(a=col("n").max() > 1), r"split .*max\(\) needs other rows"),
    "in timestamp": (
        lambda: App("a").stream("t", value=json("n bigint"), timestamp=col("n").max()),
        r"timestamp: max\(\) needs other rows",
    ),
    "a number": (lambda: stream().filter(5), r"filter .*: 5 is no expression; write col\(NAME\)"),  # type: ignore[arg-type]
    "a bool": (lambda: stream().filter(True), r"filter .*: True is no expression"),  # type: ignore[arg-type]
    "a number of": (lambda: grouped().agg(n=agg.sum(5), name="g"), "agg 'g' .*: 5 is no expression"),  # type: ignore[arg-type]
    "no condition": (lambda: stream().filter(), "filter .* needs a condition"),
    "condition of numbers": (lambda: stream().filter(col("n")), "filter .*boolean"),
    "branch of numbers": (lambda: stream().split(a=col("n")), "split .*: the branch 'a' is int64; .*condition"),
    "no branch": (lambda: stream().split(), "split .* needs branches"),
    # sources
    "no topic": (lambda: App("a").stream([], value=json("n bigint")), "stream .* needs a topic"),
    "a bad topic": (lambda: App("a").stream("a/b", value=json("n bigint")), "stream .*'a/b' has other characters"),
    "a bad topic of to": (lambda: stream().to("a b"), "to .*'a b' has other characters"),
    "no topic of to": (lambda: stream().to(""), "to .*: a topic name cannot be empty"),
    "no schema": (lambda: App("a").stream("t", value=json), "the format of the values has no schema"),
    "key and value": (
        lambda: App("a").stream("t", value=json("k string"), key="k"),
        "key and value both have a column 'k'; give the key another name",
    ),
    "time of text": (
        lambda: App("a").stream("t", value=json("s string"), timestamp="s"),
        "the timestamp is string; it must be a time, or a whole number of ms",
    ),
    "time of nothing": (lambda: App("a").stream("t", value=json("s string"), timestamp="x"), "timestamp .*'x'"),
    "app": (lambda: App("a b"), "an app cannot be called 'a b'"),
    "app of a directory": (lambda: App(".."), r"an app cannot be called '\.\.'"),
    "app without a name": (lambda: App(NO_TEXT), "an app cannot be called 5"),
    "name of a directory": (lambda: stream().group_by("n", name="..").agg(c=agg.count(), name="g"), "becomes part"),
    "name of a number": (lambda: stream().group_by("n", name=NO_TEXT).agg(c=agg.count(), name="g"), "name 5 becomes"),
    # what becomes of errors
    "on_error of the app": (
        lambda: App("a", on_error="a b"),
        "on_error is 'a b'; it must be 'fail', 'skip' or a topic",
    ),
    "on_error of a node": (lambda: stream().map(dict, on_error="a b"), "map .*on_error .*'a b'"),
    "on_error of a source": (lambda: App("a").stream("t", value=json("n int"), on_error="a b"), "stream .*on_error"),
    # windows and aggregates
    "late": (lambda: grouped().window(tumbling(10)), "late=TOPIC keeps them, late='drop' drops and counts them"),
    "a bad late topic": (lambda: count(grouped().window(tumbling(10), late="a b")), "'a b' has other characters"),
    "counting": (lambda: counting(0), r"counting\(\) needs at least 1"),
    "counting halves": (lambda: counting(1.5), "windows of 1.5 rows are not possible"),  # type: ignore[arg-type]
    "counting nothing": (lambda: counting(True), "windows of True rows are not possible"),
    "late for counting": (lambda: grouped().window(counting(2), late="drop"), "no row is late .*leave late= out"),
    "session": (lambda: session(0), "the gap is 0; it must be at least 1 ms"),
    "sliding": (lambda: sliding("-1s"), "the size of the window is '-1s'; it must be at least 0 ms"),
    "sliding without late": (lambda: grouped().window(sliding(5)), "late=TOPIC keeps them"),
    "two windows": (lambda: grouped().window(tumbling(1), late="drop").window(tumbling(1), late="drop"), "already"),
    "no window": (lambda: grouped().window(5, late="drop"), r"window .*: 5 is no window; write for example tumbling"),
    "size": (lambda: tumbling("10 years"), "the size of the window is '10 years'; write for example '10s'"),
    "no size": (lambda: tumbling(0), "must be at least 1 ms"),
    "grace": (lambda: tumbling(1, grace=-1), "the grace is -1; it must be at least 0 ms"),
    "advance": (lambda: hopping(10, 20), "leave rows between them out; advance ≤ size"),
    "many": (lambda: hopping(1_001, 1), "at most 1,000"),
    "name of agg": (lambda: grouped().agg(n=agg.count()), "agg .* needs a name: say name="),
    "nothing to compute": (lambda: grouped().agg(name="g"), r"say what to compute, for example n=agg.count\(\)"),
    "no aggregate": (lambda: grouped().agg(n=5, name="g"), r"n is 5; write for example n=agg.sum\('amount'\)"),
    "name of a key": (lambda: grouped().agg(k=agg.count(), name="g"), "a result cannot be called 'k'"),
    "emit": (
        lambda: count(grouped(), emit="now"),
        "emit is 'now'; choose 'changes', 'every', 'final' or at_most_every",
    ),
    "final": (lambda: count(grouped(), emit="final"), "emit='final' needs a window"),
    "sum of text": (lambda: grouped().agg(n=agg.sum("s"), name="g"), r"sum\(\) of string is not possible; cast it"),
    "min of a list": (lambda: grouped().agg(n=agg.min("l"), name="g"), r"min\(\) of list<.*is not possible; cast it"),
    "any of a number": (lambda: grouped().agg(n=agg.any("n"), name="g"), r"any\(\) takes a condition, and this is int"),
    "quantile": (lambda: agg.quantile("n", 99), r"quantile\(\) of 99 is not possible; q is a share from 0 to 1"),
    "quantile of text": (lambda: grouped().agg(n=agg.quantile("s", 0.5), name="g"), r"quantile\(\) of string is not"),
    "limit of halves": (lambda: agg.collect("n", 1.5), "limit of at least 1, not 1.5"),  # type: ignore[arg-type]
    "no limit": (lambda: agg.collect("n", None), "limit of at least 1, not None"),  # type: ignore[arg-type]
    "half a partition": (
        lambda: stream().key_by("n").repartition(1.5, name="r"),  # type: ignore[arg-type]
        "1.5 partitions are not possible",
    ),
    "limit": (lambda: agg.collect("n", 0), r"collect\(\) needs a limit of at least 1"),
    "bounds twice": (
        lambda: count(
            grouped()
            .window(tumbling(1), late="drop")
            .agg(m=agg.count(), name="a")
            .group_by("k")
            .window(tumbling(2), late="l")
        ),
        r"the rows have a column 'window_start' already; rename\(\) it",
    ),
    "key of a list": (lambda: stream().key_by("k", "l"), r"key_by .*: column 'l' is list<.*; explode\(\) it before"),
    "group by a list": (
        lambda: stream().group_by("l", name="by-l"),
        r"group_by \(test_refusals.*: column 'l' is list<.*; explode\(\) it before, or take its parts as columns",
    ),
    "group a table by a struct": (
        lambda: table(value=json("n bigint, s struct<a: int>")).group_by("s", name="by-s"),
        "group_by .*: column 's' is struct<.*, of which no key is made; take its parts as columns",
    ),
    # what is durable
    "other key": (lambda: count(stream().group_by("s")), "move to the tasks of their new keys .*: say name="),
    "repartition": (lambda: stream().repartition(name=""), "needs a name: say name="),
    "unique": (lambda: stream().unique("k", within=1, name=""), "unique .* needs a name: say name="),
    "unique by another": (
        lambda: stream().unique("s", within=1, name="u"),
        r"may be in different partitions; put key_by\('s'\).repartition\(name=…\) before it",
    ),
    "unique for no time": (
        lambda: stream().unique(within=0, name="u"),
        "unique .*: within is 0; it must be",
    ),
    "unique of a list": (
        lambda: stream().unique("k", "l", within=1, name="u"),
        "unique .*: column 'l' is list<.*, of which no key is made",
    ),
    "partitions": (lambda: stream().repartition(0, name="r"), "0 partitions are not possible; choose 1 to 10,000"),
    # tables
    "table without a name": (lambda: table(name=""), "table .* keeps state, which needs a name: say name="),
    "table of no topic": (lambda: table(topic=""), ".*a topic name cannot be empty"),
    "to_table without a name": (lambda: stream().to_table(name=""), "to_table .* needs a name: say name="),
    "table of a decimal inside": (
        lambda: table(value=json("l array<decimal(5,1)>")),
        "a table cannot keep 'l', which is list<.*decimal128.*: decimals .* use double or string there",
    ),
    "table of functions' rows": (
        lambda: stream().map(lambda row: row).to_table(name="g"),
        r"to_table .*the function before gave no columns: say schema=",
    ),
    "filter of a table": (lambda: table().filter(col("x") > 1), "filter .*'x'.*; the columns are: n int64"),
    "time of a table": (
        lambda: table().select(at=col("_time")),
        r"select \(.*: a row of a table has no '_time'; it is looked up at any time",
    ),
    "min of a table": (
        lambda: table().group_by("n", name="g").agg(n=agg.min("n"), name="a"),
        r"agg 'a' .*: min\(\) cannot take a row out again that the table replaces; use count, sum, mean, fold",
    ),
    "window of a table": (
        lambda: table().group_by("n", name="g").window(tumbling(1), late="drop"),
        r"window .*: rows of a table have no window; say to_stream\(\) before group_by\(\)",
    ),
    "emit of a table": (lambda: table().to("out", emit="final"), "to .*: emit is 'final'; choose 'changes' or 'every'"),
    "join with no table": (
        lambda: stream().join("t"),
        "join .*: a stream is joined with a table or another stream; this is 't'",
    ),  # type: ignore[arg-type]
    "join of a table with a stream": (
        lambda: table().join(stream()),  # type: ignore[arg-type]
        "join .*: a table is joined with a table; this is Stream",
    ),
    "join, but how": (lambda: stream().join(table(), how="outer"), "how is 'outer'; choose 'inner', 'left'"),
    "join of tables, but how": (lambda: table().join(table(), how="full"), "choose 'inner', 'left', 'outer'"),
    "join with a table of another app": (lambda: stream().join(table()), "join .*: the two belong to different apps"),
    "join of functions' rows": (
        lambda: stream().map(lambda row: row).join(table()),
        "join .*: the function before gave no columns: say schema=",
    ),
    # several streams
    "join of apps": (lambda: near(other=stream()), "the two belong to different apps"),
    "join without within": (lambda: near(within=None), "say how far apart in time the rows .* as within='10m'"),
    "join within a table": (
        lambda: near(other=App("t").table("t", value=json("x bigint"), name="t"), within=5),
        "join 'j' .*: within=, grace=, late= and name= are for joins of two streams",
    ),
    "join without a name": (lambda: near(name=""), "join .* needs a name: say name="),
    "join without late": (lambda: near(late=""), r"join 'j' .*: say what becomes of rows .*late=TOPIC keeps them"),
    "join how": (lambda: near(how="right"), "how is 'right'; choose 'inner', 'left', 'outer'"),
    "join with nothing": (lambda: near(other=5), "is joined with a table or another stream; this is 5"),
    "join within": (lambda: near(within="soon"), "join 'j' .*: within is 'soon'; write for example '10s'"),
    "join within less than nothing": (lambda: near(within="-5m"), "within is '-5m'; it must be at least 0 ms"),
    "join within from and to": (lambda: near(within=("5m", "-5m")), "the first must not be beyond the second"),
    "join within three": (lambda: near(within=(1, 2, 3)), r"from when to when: \('-5m', '10m'\)"),
    "join grace": (lambda: near(grace=-1), "join 'j' .*: the grace is -1; it must be"),
    "join of equal names": (lambda: near(suffix=""), r"both sides have a column 'n'; rename\(\) it, .*suffix="),
    "join of names that the suffix makes equal": (
        lambda: near(suffix="2", rename={"m": "n2"}),
        "the name 'n2' would be there twice",
    ),
    "join of keys of two types": (lambda: near(key_type="bigint"), "the key 'k' is string here and int64 there; cast"),
    "join of rows that must move": (
        lambda: near(then=lambda left: left.key_by("n").filter(col("n") > 1)),
        r"in different partitions since key_by\(\); put repartition\(name=…\) behind it",
    ),
    "join without columns": (lambda: near(then=lambda left: left.map(dict)), "gave no columns: say schema="),
    "merge of apps": (lambda: stream().merge(stream()), "the streams belong to different apps"),
    # formats
    "format that reads": (
        lambda: stream().to("out", value=custom(decode=lambda v: {}, schema="n bigint")),
        "only reads; give it encode=",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    build, message = REFUSED[name]
    with pytest.raises(NotAllowed, match=message) as refused:
        build()
    assert "_watermark" not in str(refused.value), "system columns are not the user's"


def test_messages_name_the_line_of_the_program() -> None:
    with pytest.raises(NotAllowed, match=r"filter \(test_refusals\.py:\d+\)"):
        stream().filter(col("x"))


def test_merge_takes_equal_columns() -> None:
    one = stream()
    with pytest.raises(NotAllowed, match=r"the columns differ: .*select\(\) the same ones on both sides"):
        one.merge(one.select("n"))


def test_a_name_is_taken_once() -> None:
    one = stream()
    count(one.group_by("k"))
    with pytest.raises(NotAllowed, match=r"agg 'g' \(.*\): the name 'g' is taken by agg 'g' \(.*\)"):
        count(one.group_by("k"))


def test_a_topic_is_read_once() -> None:
    app = App("refused")
    app.stream("in", value=json("n bigint"))
    with pytest.raises(NotAllowed, match=r"reads the topic 'in' already; use that stream twice instead"):
        app.stream(["other", "in"], value=json("n bigint"))
    with pytest.raises(NotAllowed, match="names the topic 'x' twice"):
        app.stream(["x", "x"], value=json("n bigint"))


def test_inputs_of_one_task_have_equally_many_partitions() -> None:
    app = App("refused")
    one, other = (app.stream(topic, value=json("n bigint")) for topic in ("one", "other"))
    one.merge(other).to("out")
    with pytest.raises(NotAllowed, match=r"one has 2, other has 3; put repartition\(n, name=…\) behind one of them"):
        Driver(app, partitions={"one": 2, "other": 3})


def test_a_repartition_makes_partitions_equal() -> None:
    app = App("refused")
    one = app.stream("one", value=json("n bigint"), key="k").repartition(3, name="more")
    one.merge(app.stream("other", value=json("n bigint"), key="k")).to("out")
    with Driver(app, partitions={"one": 2, "other": 3}) as driver:
        driver.pipe("one", [{"k": "a", "n": 1}])
        driver.pipe("other", [{"k": "a", "n": 2}])
        assert sorted(row["n"] for row in driver.read("out")) == [1, 2]


def test_a_part_that_reads_several_topics_has_a_name_that_a_topic_can_have() -> None:
    app = App("several")
    left = app.stream("a", value=json("n bigint"), key="k")
    right = app.stream("b", value=json("n bigint"), key="k")
    left.merge(right).group_by("k").agg(n=agg.count(), name="counts").to("out")
    (part,) = sub_topologies(app.graph)
    assert part.name == "a_and_b"


def test_two_parts_of_one_name_are_refused() -> None:
    app = App("twice")
    app.stream("a_and_b", value=json("n bigint")).to("out")
    app.stream("a", value=json("n bigint")).merge(app.stream("b", value=json("n bigint"))).to("out")
    with pytest.raises(NotAllowed, match="would both be called 'a_and_b'"):
        sub_topologies(app.graph)


@pytest.mark.parametrize(
    ("moved", "do"), [(True, r"say repartition\(3, name='by-user'\)"), (False, r"put repartition\(n, name=…\) behind")]
)
def test_sides_of_different_numbers_of_partitions_are_told_what_to_say(moved: bool, do: str) -> None:
    app = App("rich")
    customers = app.table("customers", value=json("tier string"), key="user", name="customers")
    orders = app.stream("orders", value=json("amount double"), key="user")
    moving = orders.key_by("user").repartition(name="by-user") if moved else orders
    moving.join(customers).to("out")
    with pytest.raises(NotAllowed, match=f"customers has 3, .* has 2; {do}"):
        Driver(app, partitions={"customers": 3, "orders": 2})


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"value": "json"}, "value is 'json', which is no format"),
        ({"key": 5}, "key is 5, which is no format"),
        ({"key": "id bigint"}, r"key='id bigint' is a schema.*write json\('id bigint'\)"),
        ({"topics": 5}, "5 is no topic"),
    ],
)
def test_what_is_no_format_and_no_topic(given: dict[str, Any], error: str) -> None:
    asked = {"topics": "in", "value": json("n bigint"), **given}
    with pytest.raises(NotAllowed, match=rf"stream \(test_refusals\.py:\d+\).*{error}"):
        App("refused").stream(asked.pop("topics"), **asked)


def test_formats_of_other_places() -> None:
    wrong: Any = "json"
    with pytest.raises(NotAllowed, match=r"to 'out' \(.*\): value is 'json', which is no format"):
        stream().to("out", value=wrong)
    with pytest.raises(NotAllowed, match=r"global_table \(.*\): value is 'json', which is no format"):
        App("refused").global_table("t", value=wrong, key="k")


@pytest.mark.parametrize("given", [{"state": ["n"]}, {"schedule": "1m"}, {"wall_schedule": "1m"}])
def test_state_and_schedules_are_dicts(given: dict[str, Any]) -> None:
    with pytest.raises(NotAllowed, match=r"process .*: \w+=? is .*; write for example (state=)?\{'"):
        stream().process(print, name="p", **given)


def test_keys_may_be_columns_with_spaces() -> None:
    assert App("refused").stream("in", value=json("n bigint"), key="user name").schema.names == ["n", "user name"]
