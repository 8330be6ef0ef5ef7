"""Tables, and joins with them, as Kafka Streams defines them: its documented inputs and, with "every", its rows."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from libs.streams.tests.kit.feeding import Fed, raw, rows
from narwhals.stable.v2 import Int64

from headrace_streams import App, NotAllowed, Stream, Table, agg, col, json, string
from headrace_streams.core.outputs import Output
from headrace_streams.core.state.memory import MemoryCold
from headrace_streams.plan.cut import Assembly
from headrace_streams.testing import Driver

LEFT = {1: None, 3: "A", 5: "B", 7: None, 9: "C", 12: None, 15: "D"}
RIGHT = {2: None, 4: "a", 6: "b", 8: None, 10: "c", 11: None, 13: None, 14: "d"}


def stream(app: App, topic: str, column: str) -> Stream:
    return app.stream(topic, value=json(f"{column} string"), key="k")


def table(app: App, topic: str, column: str) -> Table:
    return app.table(topic, value=json(f"{column} string"), key="k", name=topic)


def written(outputs: list[Output], topic: str) -> list[dict[str, Any] | None]:
    return [
        None if value is None else orjson.loads(value)
        for output in outputs
        if output.topic == topic
        for value in output.records["value"].to_pylist()
    ]


def kafkas(app: App) -> list[Any]:
    """What each of Kafka's records brings about: the pair that is joined, or None where the result is deleted."""
    assembly = Assembly(app.name, app.graph, {"left": 1, "right": 1})
    task = assembly.make(assembly.parts[0], 0)
    task.open(lambda name: MemoryCold(), {})
    found: list[Any] = []
    for at in range(1, 16):
        topic, column, value = ("left", "l", LEFT[at]) if at in LEFT else ("right", "r", RIGHT[at])
        task.feed(topic, raw([(b"k", None if value is None else {column: value}, at)]))
        found += [(at, row and f"{row['l'] or ''}-{row['r'] or ''}") for row in written(task.take(), "out")]
    return found


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("inner", [(5, "B-a"), (15, "D-d")]),
        ("left", [(3, "A-"), (5, "B-a"), (9, "C-"), (15, "D-d")]),
    ],
)
def test_stream_and_table(how: str, expected: list[Any]) -> None:
    app = App("kafka")
    stream(app, "left", "l").join(table(app, "right", "r"), how=how).to("out")
    assert kafkas(app) == expected


INNER = [(4, "A-a"), (5, "B-a"), (6, "B-b"), (7, None), (10, "C-c"), (11, None), (15, "D-d")]
OF_LEFT = [
    *[(3, "A-"), (4, "A-a"), (5, "B-a"), (6, "B-b"), (7, None)],
    *[(9, "C-"), (10, "C-c"), (11, "C-"), (12, None), (15, "D-d")],
]
OF_BOTH = [
    *[(3, "A-"), (4, "A-a"), (5, "B-a"), (6, "B-b"), (7, "-b"), (8, None)],
    *[(9, "C-"), (10, "C-c"), (11, "C-"), (12, None), (14, "-d"), (15, "D-d")],
]


@pytest.mark.parametrize(("how", "expected"), [("inner", INNER), ("left", OF_LEFT), ("outer", OF_BOTH)])
def test_table_and_table(how: str, expected: list[Any]) -> None:
    app = App("kafka")
    table(app, "left", "l").join(table(app, "right", "r"), how=how).to("out", emit="every")
    assert kafkas(app) == expected


def test_aggregation_of_a_table() -> None:
    """Kafka's users with a region each: the length of the names of a region's users."""
    given = [
        ("alice", "E"),
        ("bob", "A"),
        ("charlie", "A"),
        ("alice", "A"),
        ("charlie", None),
        (None, "E"),
        ("bob", "E"),
    ]
    app = App("kafka")
    users = app.table("users", value=json("region string"), key="user", name="users")
    sized = users.with_columns(size=col("user").str.len_chars())
    sized.group_by("region", name="by-region").agg(total=agg.sum("size"), name="sizes", emit="every").to("out")
    states = []
    with Driver(app) as driver:
        total: dict[str, int] = {}
        for user, region in given:
            value = None if region is None else orjson.dumps({"region": region})
            driver.pipe_raw("users", [user and user.encode()], [value])  # type: ignore[list-item]
            total |= {row["region"]: row["total"] or 0 for row in driver.read("out")}
            states.append(dict(total))
    assert states == [
        {"E": 5},
        {"A": 3, "E": 5},
        {"A": 10, "E": 5},
        {"A": 15, "E": 0},
        {"A": 8, "E": 0},
        {"A": 8, "E": 0},
        {"A": 5, "E": 3},
    ]


def test_a_table_on_disk_is_found_again() -> None:
    app = App("tables")
    users = table(app, "users", "name")
    stream(app, "in", "x").join(users, how="left").to("out")
    users.to("names")
    with Driver(app, partitions={"users": 2, "in": 2}, seed=5) as driver:
        for name in "abcdefgh":
            driver.pipe("users", [{"k": name, "name": name * 2}])
        driver.commit()
        driver.pipe_raw("users", [b"c", b"nobody"], [None, None])
        driver.pipe("users", [{"k": "d", "name": "new"}])
        driver.crash()
        driver.restart()
        driver.pipe("in", [{"k": name, "x": "?"} for name in "abcdefgh"])
        found = {row["k"]: row["name"] for row in driver.read("out")}
        assert found == {"a": "aa", "b": "bb", "c": None, "d": "new", **{name: name * 2 for name in "efgh"}}
        assert {row["k"]: row["name"] for row in driver.store("users")} == {k: v for k, v in found.items() if v}
        told = {record["key"]: record["value"] for record in driver.read_raw("names")}
        assert told[b"c"] is None
        assert b"nobody" not in told
        assert orjson.loads(told[b"d"]) == {"name": "new", "k": "d"}


def test_what_came_and_went_within_a_commit_is_not_told() -> None:
    app = App("tables")
    table(app, "in", "name").to("out")
    fed = Fed(app)
    fed.feed("in", [(b"a", {"name": "x"}, 1), (b"a", None, 2), (b"b", {"name": "y"}, 3)])
    assert [(key, time) for key, _, time in rows(fed.commit(), "out")] == [(b"b", 3)]
    assert [key for key, _ in fed.cold["in"].scan()] == [b"b"]
    fed.feed("in", [(b"b", {"name": "z"}, 4), (b"b", None, 9)])
    assert rows(fed.commit(), "out") == [(b"b", None, 9)]
    assert list(fed.cold["in"].scan()) == []


def test_a_deletion_that_was_aborted_did_not_happen() -> None:
    app = App("tables")
    table(app, "in", "name").to("out")
    fed = Fed(app)
    fed.feed("in", [(b"a", {"name": "x"}, 1)])
    fed.commit()
    fed.feed("in", [(b"a", None, 2)])
    fed.abort()
    fed.feed("in", [(b"a", {"name": "y"}, 3)])
    assert [value for _, value, _ in rows(fed.commit(), "out")] == [{"name": "y", "k": "a"}]
    assert [key for key, _ in fed.cold["in"].scan()] == [b"a"]


def test_the_time_of_a_deletion_is_that_of_its_record() -> None:
    app = App("tables")
    users = app.table("in", value=json("name string, at timestamp"), key="k", name="in", timestamp="at")
    users.select("name").to("out", emit="every")
    fed = Fed(app)
    fed.feed("in", [(b"a", {"name": "x", "at": 5}, 1), (b"a", None, 7), (b"a", {"name": "y", "at": 6}, 1)])
    assert [(value, time) for _, value, time in rows(fed.commit(), "out")] == [
        ({"name": "x"}, 5),
        (None, 7),
        ({"name": "y"}, 6),
    ]


def test_the_time_of_a_join_of_tables_is_the_later_one() -> None:
    app = App("tables")
    one, other = table(app, "left", "l"), table(app, "right", "r")
    one.join(other).join(one.select(m="l")).to("out", emit="every")
    fed = Fed(app)
    fed.feed("left", [(b"a", {"l": "x"}, 9)])
    fed.feed("right", [(b"a", {"r": "y"}, 4), (b"a", {"r": "z"}, 11)])
    fed.feed("left", [(b"a", {"l": "y"}, 10)])
    assert [time for _, _, time in rows(fed.commit(), "out")] == [9, 11, 11, 11]


def test_names_of_both_sides() -> None:
    app = App("tables")
    orders = app.stream("in", value=json("name string, n bigint"), key="k")
    users = table(app, "users", "name")
    joined = orders.join(users, suffix="_of_user")
    assert joined.schema.names == ["name", "n", "k", "name_of_user"]
    assert orders.join(users.select(user="name")).schema.names == ["name", "n", "k", "user"]
    with pytest.raises(NotAllowed, match=r"join \(test_tables.py:\d+\): both sides have a column 'name'; .*suffix="):
        orders.join(users)
    with pytest.raises(NotAllowed, match="the name 'n_2' would be there twice"):
        orders.with_columns(n_2=col("n")).join(users.select(n="name"), suffix="_2")


def test_groups_may_be_those_of_the_key() -> None:
    app = App("tables")
    table(app, "in", "name").group_by("k").agg(n=agg.count(), name="counts", emit="every").to("out")
    fed = Fed(app)
    fed.feed("in", [(b"a", {"name": "x"}, 1), (b"a", {"name": "y"}, 2), (b"a", None, 3)])
    assert [value["n"] for _, value, _ in rows(fed.commit(), "out")] == [1, 1, 0]


def test_the_result_of_aggregates_is_a_table_if_asked_to_be() -> None:
    app = App("tables")
    orders = app.stream("in", value=json("n bigint"), key="k")
    totals = orders.group_by("k").agg(total=agg.sum("n"), name="totals").to_table(name="totals-table")
    totals.filter(col("total") > 4).to("large")
    with Driver(app) as driver:
        for n in (3, 2, -4):
            driver.pipe("in", [{"k": "a", "n": n}])
            driver.commit()
        assert driver.read("large") == [{"k": "a", "total": 5}, None]


def test_records_that_cannot_be_read_leave_the_table_as_it_is() -> None:
    app = App("tables", on_error="dead")
    table(app, "in", "name").to("out")
    with Driver(app) as driver:
        driver.pipe_raw("in", [b"a", b"a", None, b"b"], [b'{"name": "x"}', b"no json", b'{"name": "y"}', None])
        assert driver.read("out") == [{"name": "x", "k": "a"}]
        assert [record["value"] for record in driver.read_raw("dead")] == [b"no json", b'{"name": "y"}'], "no key"


def test_a_row_that_fails_is_buried_once() -> None:
    app = App("tables", on_error="dead")
    table(app, "in", "name").with_columns(n=col("name").cast(Int64)).to("out", emit="every")
    fed = Fed(app)
    fed.feed("in", [(b"a", {"name": "1"}, 1), (b"a", {"name": "x"}, 2), (b"a", {"name": "2"}, 3)])
    outputs = fed.commit()
    assert [value and value["n"] for _, value, _ in rows(outputs, "out")] == [1, None, 2]
    assert [key for key, _, _ in rows(outputs, "dead")] == [b"a"]


def test_a_table_of_another_format_tells_deletions() -> None:
    app = App("tables")
    table(app, "in", "name").select("name").to("out", value=string)
    with Driver(app) as driver:
        driver.pipe("in", [{"k": "a", "name": "x"}])
        driver.commit()
        driver.pipe_raw("in", [b"a", b"b"], [None, b'{"name": "y"}'])
        assert driver.read("out") == [{"value": "x"}, None, {"value": "y"}]


def test_topics_of_a_join_have_equally_many_partitions() -> None:
    app = App("tables")
    stream(app, "in", "x").join(table(app, "users", "name")).to("out")
    with pytest.raises(NotAllowed, match=r"in has 2, users has 3; put repartition\(n, name=…\) behind one of them"):
        Driver(app, partitions={"in": 2, "users": 3})


def test_a_stream_with_another_key_is_moved_first() -> None:
    app = App("tables")
    orders = app.stream("in", value=json("user string"))
    users = table(app, "users", "name")
    with pytest.raises(NotAllowed, match=r"in different partitions since key_by\(\); put repartition\(name=…\) be"):
        orders.key_by("user").join(users)
    with pytest.raises(NotAllowed, match=r"to_table .*since key_by\(\)"):
        orders.key_by("user").filter(col("user") != "").to_table(name="x")
    orders.key_by("user").repartition(3, name="by-user").join(users).to("out")
    with Driver(app, partitions={"in": 2, "users": 3}) as driver:
        driver.pipe("users", [{"k": name, "name": name * 2} for name in "abcd"])
        driver.pipe("in", [{"user": name} for name in "abcdx"])
        assert sorted(row["name"] for row in driver.read("out")) == ["aa", "bb", "cc", "dd"]


def test_a_row_of_which_a_filter_cannot_tell_is_not_in_the_table() -> None:
    app = App("a")
    app.table("in", value=json("n bigint"), key="k", name="t").filter(col("n") > 1).to("out", emit="every")
    with Driver(app) as driver:
        for n in (2, None, None, 3):
            driver.pipe("in", [{"k": "a", "n": n}])
        assert [record["value"] for record in driver.read_raw("out")] == [b'{"n":2,"k":"a"}', None, b'{"n":3,"k":"a"}']
