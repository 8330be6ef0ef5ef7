"""Joins of tables where a column of one has the key of the other, against what is in both tables in the end."""

from __future__ import annotations

from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from libs.streams.tests.kit.feeding import raw

from headrace_streams import App, NotAllowed, Table, agg, col, json, tumbling
from headrace_streams.core.operators import hop
from headrace_streams.core.state.asked import AskedStore
from headrace_streams.core.state.memory import MemoryCold
from headrace_streams.core.task import Task
from headrace_streams.plan.cut import Assembly
from headrace_streams.testing import Driver

Change = tuple[str, str, dict[str, Any] | None]
"""Topic, key and value."""


def users(app: App) -> Table:
    return app.table("users", value=json("name string"), key="id", name="users")


def orders(app: App) -> Table:
    return app.table("orders", value=json("user string, n bigint"), key="order", name="orders")


def program(how: str) -> App:
    app = App("foreign")
    of_users = users(app).filter(col("name") != "secret").select("name")
    orders(app).filter(col("n") > 0).join(of_users, on="user", how=how, name="rich").to("out")
    return app


def pipe(driver: Driver, changes: list[Change]) -> None:
    for topic, key, value in changes:
        driver.pipe_raw(topic, [key.encode()], [None if value is None else orjson.dumps(value)])


def expected(how: str, changes: list[Change]) -> dict[str, Any]:
    held: dict[str, dict[str, Any]] = {"users": {}, "orders": {}}
    for topic, key, value in changes:
        held[topic][key] = value
    names = {key: value["name"] for key, value in held["users"].items() if value and value["name"] != "secret"}
    rich = {key: {**value, "order": key} for key, value in held["orders"].items() if value and value["n"] > 0}
    return {
        key: {**value, "name": names.get(value["user"])}
        for key, value in rich.items()
        if value["user"] in names or how == "left"
    }


def told(driver: Driver) -> dict[str, Any]:
    last = {record["key"].decode(): orjson.loads(record["value"] or b"null") for record in driver.read_raw("out")}
    return {key: value for key, value in last.items() if value is not None}


user = st.tuples(
    st.just("users"),
    st.sampled_from("ab"),
    st.none() | st.fixed_dictionaries({"name": st.sampled_from(["x", "y", "secret"])}),
)
order = st.tuples(
    st.just("orders"),
    st.sampled_from("1234"),
    st.none()
    | st.fixed_dictionaries({"user": st.sampled_from(["a", "b", "c", None]), "n": st.sampled_from([0, 1, 2])}),
)
changes_of_both = st.lists(user | order | order, min_size=1, max_size=25)


@pytest.mark.parametrize("how", ["inner", "left"])
@settings(max_examples=40, deadline=None)
@given(changes=changes_of_both, seed=st.integers(0, 1_000), crash=st.integers(0, 25))
def test_rows_find_what_they_refer_to(how: str, changes: list[Change], seed: int, crash: int) -> None:
    with Driver(program(how), partitions={"users": 2, "orders": 3}, seed=seed) as driver:
        pipe(driver, changes[:crash])
        driver.crash()
        driver.restart()
        pipe(driver, changes[crash:])
        driver.commit()
        assert {row["order"]: row for row in driver.store("rich")} == expected(how, changes)
        assert told(driver) == expected(how, changes)


LEFT, RIGHT = "orders", "users"
KAFKAS: list[tuple[list[Change], list[tuple[str, str | None]], list[tuple[str, str | None]]]] = [
    # what comes; what an inner and a left join tell of it: a key with what it refers to and finds, None for a deletion
    ([(LEFT, "k", {"user": "1"}), (RIGHT, "1", {"name": "foo"})], [("k", "1-foo")], [("k", "1-"), ("k", "1-foo")]),
    ([(LEFT, "k", {"user": "2"})], [("k", None)], [("k", "2-")]),
    ([(LEFT, "k", {"user": "3"})], [], [("k", "3-")]),
    ([(RIGHT, "3", {"name": "bar"})], [("k", "3-bar")], [("k", "3-bar")]),
    ([(LEFT, "k", {"user": None})], [("k", None)], [("k", "-")]),
    ([(LEFT, "k", {"user": "1"})], [("k", "1-foo")], [("k", "1-foo")]),
    ([(LEFT, "q", {"user": "10"})], [], [("q", "10-")]),
    ([(LEFT, "r", {"user": "10"})], [], [("r", "10-")]),
    ([(RIGHT, "10", {"name": "baz"})], [("q", "10-baz"), ("r", "10-baz")], [("q", "10-baz"), ("r", "10-baz")]),
]
"""
The documented table of Kafka Streams. Its first line has both records in one; and it deletes once more what an inner
join has deleted already (third line), which is not told here.
"""


@pytest.mark.parametrize("how", ["inner", "left"])
def test_the_table_of_kafka(how: str) -> None:
    app = App("kafka")
    left = app.table(LEFT, value=json("user string"), key="k", name=LEFT)
    right = app.table(RIGHT, value=json("name string"), key="id", name=RIGHT)
    left.join(right, on="user", how=how, name="both").to("out", emit="every")
    with Driver(app) as driver:
        for line, (changes, *told) in enumerate(KAFKAS, 1):
            for change in changes:
                pipe(driver, [change])
                driver.commit()
            found = [
                (record["key"].decode(), orjson.loads(record["value"] or b"null")) for record in driver.read_raw("out")
            ]
            said = [(key, row and f"{row['user'] or ''}-{row['name'] or ''}") for key, row in found]
            assert said == told[how == "left"], f"line {line}"


def test_one_row_that_many_refer_to() -> None:
    with Driver(program("inner"), partitions=2) as driver:
        pipe(
            driver, [("users", "a", {"name": "x"}), *(("orders", f"{n}", {"user": "a", "n": n + 1}) for n in range(50))]
        )
        assert {row["name"] for row in told(driver).values()} == {"x"}
        pipe(driver, [("users", "a", {"name": "y"})])
        found = told(driver)
        assert len(found) == 50
        assert {row["name"] for row in found.values()} == {"y"}
        pipe(driver, [("orders", "7", None), ("users", "a", None)])
        assert [record["value"] for record in driver.read_raw("out")] == [None] * 50


def test_who_asks_is_kept_and_forgotten() -> None:
    cold, store = MemoryCold(), AskedStore()
    store.open(cold)
    store.add(b"a", b"1")
    store.add(b"a", b"2")
    store.add(b"b", b"1")
    store.remove(b"b", b"1")
    assert store.changes() == [(bytes.fromhex("000000016131"), b"\x01"), (bytes.fromhex("000000016132"), b"\x01")]
    cold.write(store.changes())
    store.settle()
    store.remove(b"a", b"1")
    store.drop()
    assert list(store.asking(b"a")) == [b"1", b"2"]
    store.remove(b"a", b"1")
    store.remove(b"a", b"3")
    assert store.changes() == [(bytes.fromhex("000000016131"), None)]
    assert list(store.asking(b"a")) == [b"2"]
    assert list(store.asking(b"b")) == []


def test_the_form_of_who_asks_names_the_column() -> None:
    """Rows that ask by another column are others."""
    forms: dict[str, str] = {}
    for part in Assembly("a", program("left").graph, {"users": 2, "orders": 3}).parts:
        forms |= part.form
    assert forms["rich.asked"] == "who asks for the key in 'user'"
    assert forms["rich"] == "rows of (user string, n int64, order string, name string)"


def test_topics_of_questions_and_answers_are_as_wide_as_their_readers() -> None:
    assembly = Assembly("a", program("left").graph, {"users": 2, "orders": 3})
    assert assembly.repartitions == {"rich.asks": 2, "rich.answers": 3}


def test_a_task_that_rests_does_so_still_when_an_answer_comes() -> None:
    """Answers have no time. That all its topics are idle it is told once, and those behind it would wait for it."""
    app = App("foreign")
    rich = orders(app).join(users(app), on="user", name="rich").to_stream()
    rich.group_by("name", name="by-name").window(tumbling("1m"), late="drop").agg(n=agg.count(), name="w").to("out")
    assembly = Assembly("a", app.graph, {"users": 1, "orders": 1})
    of_orders, of_users = (next(p for p in assembly.parts if topic in p.topics) for topic in ("orders", "users"))
    asking, answering = assembly.make(of_orders, 0), assembly.make(of_users, 0)
    for task in (asking, answering):
        task.open(lambda store: MemoryCold(), {})

    def sent(task: Task) -> dict[str, pa.Table]:
        task.flush()
        return {one.topic: one.records.append_column("offset", pa.array([0])) for one in task.take()}

    def idle(flushes: dict[str, pa.Table]) -> list[bool]:
        return [hop.decode(value.as_py()).idle for records in flushes.values() for value in records["value"]]

    answering.feed("users", raw([(b"a", {"name": "ann"}, 1)]))
    asking.feed("orders", raw([(b"1", {"user": "a", "n": 1}, 1)]))
    asking.idle("orders")
    asks = sent(asking)
    assert idle(asks) == [True, True]
    answering.feed("a.rich.asks.repartition", asks["a.rich.asks.repartition"])
    asking.feed("a.rich.answers.repartition", sent(answering)["a.rich.answers.repartition"])
    assert idle(sent(asking)) == [True]
    asking.feed("orders", raw([(b"2", {"user": "a", "n": 1}, 2)]))
    assert idle(sent(asking)) == [False, False]


def test_an_answer_to_what_is_asked_no_more_does_not_count() -> None:
    """The row refers to b when the answer about a comes."""
    app = program("left")
    assembly = Assembly("a", app.graph, {"users": 1, "orders": 1})
    of_orders, of_users = (next(p for p in assembly.parts if topic in p.topics) for topic in ("orders", "users"))
    asking, answering = assembly.make(of_orders, 0), assembly.make(of_users, 0)
    for task in (asking, answering):
        task.open(lambda store: MemoryCold(), {})

    def sent(task: Task, topic: str) -> pa.Table:
        task.flush()
        (records,) = [output.records for output in task.take() if output.topic == topic]
        return records.append_column("offset", pa.array(range(records.num_rows)))

    def count(flushes: pa.Table) -> int:
        values: list[Any] = flushes["value"].to_pylist()
        return sum(flush.rows.num_rows for flush in map(hop.decode, values) if flush.rows is not None)

    def asks(name: str) -> pa.Table:
        asking.feed("orders", raw([(b"1", {"user": name, "n": 1}, 1)]))
        return sent(asking, "a.rich.asks.repartition")

    answering.feed("users", raw([(b"a", {"name": "ann"}, 1), (b"b", {"name": "bob"}, 1)]))
    answering.feed("a.rich.asks.repartition", asks("a"))
    about_a = sent(answering, "a.rich.answers.repartition")
    answering.feed("a.rich.asks.repartition", asks("b"))
    about_b = sent(answering, "a.rich.answers.repartition")
    asking.feed("a.rich.answers.repartition", about_b)
    asking.feed("a.rich.answers.repartition", about_a)
    contents = asking.contents("rich")
    assert contents is not None
    assert contents["name"].to_pylist() == ["bob"]
    assert answering.changes()["rich.asked"] == [(bytes.fromhex("000000016231"), b"\x01")]
    # A row that changes is one question if it refers to the same row, and one answer to each that asks.
    assert count(asks("b")) == 1
    answering.feed("users", raw([(b"b", {"name": "bobby"}, 2)]))
    assert count(sent(answering, "a.rich.answers.repartition")) == 1


def test_a_table_that_refers_to_itself() -> None:
    app = App("foreign")
    people = app.table("people", value=json("name string, boss string"), key="id", name="people")
    people.join(people.select(boss_name="name"), on="boss", how="left", name="bosses").to("out")
    with Driver(app, partitions=3) as driver:
        driver.pipe("people", [{"id": "1", "name": "ann", "boss": None}, {"id": "2", "name": "bob", "boss": "1"}])
        driver.pipe("people", [{"id": "3", "name": "eve", "boss": "2"}, {"id": "1", "name": "anna", "boss": "3"}])
        assert {row["name"]: row["boss_name"] for row in driver.store("bosses")} == {
            "anna": "eve",
            "bob": "anna",
            "eve": "bob",
        }


def test_event_time_goes_on_around_the_questions() -> None:
    """The two tables wait for each other's rows, and not for each other's time."""
    app = App("foreign")
    joined = orders(app).join(users(app), on="user", name="rich")
    groups = joined.to_stream().group_by("user", name="by-user").window(tumbling("10s"), late="drop")
    groups.agg(n=agg.count(), name="counts", emit="final").to("out")
    with Driver(app, partitions=2) as driver:
        driver.pipe("users", [{"id": "a", "name": "x"}], time=5_000)
        driver.pipe("orders", [{"order": "1", "user": "a", "n": 1}], time=7_000)
        assert driver.read("out") == []
        driver.advance_to(10_000)
        assert [(row["user"], row["n"]) for row in driver.read("out")] == [("a", 1)]


def test_what_a_join_on_a_column_refuses() -> None:
    app = App("foreign")
    left, right = orders(app), users(app)
    for asked, message in (
        ({"on": "x", "name": "j"}, r"join .*: there is no column 'x'; the columns are: user string"),
        ({"on": "user"}, r"join .* keeps state, which needs a name: say name="),
        ({"on": "user", "name": "j", "how": "outer"}, r"join 'j' .*: how is 'outer'; choose 'inner', 'left'"),
        ({"name": "j"}, r"join 'j' .*: a join by key keeps nothing of its own; leave name= out"),
    ):
        with pytest.raises(NotAllowed, match=message):
            left.join(right, **asked)


@pytest.mark.parametrize(("how", "letters"), [("left", 0), ("inner", 1)])
def test_a_row_that_refers_to_nothing_is_no_dead_letter_where_it_stays(how: Any, letters: int) -> None:
    app = App("foreign", on_error="dead")
    customers = app.table("customers", value=json("city string"), key="customer", name="customers")
    orders = app.table("orders", value=json("customer_id string"), key="order", name="orders")
    orders.join(customers, on="customer_id", how=how, name="both").to("out")
    with Driver(app) as driver:
        driver.pipe("orders", [{"order": "1", "customer_id": None}])
        assert (len(driver.read_raw("dead")), len(driver.read("out"))) == (letters, 1 - letters)
