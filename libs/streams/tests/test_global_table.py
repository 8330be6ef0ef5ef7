"""Tables that each worker has whole."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from libs.streams.tests.kit.feeding import raw

from headrace.errors import PositionOutOfRange
from headrace.records import PartitionTable, TopicPartition
from headrace_streams import App, NotAllowed, RowFailed, Stream, agg, json, string
from headrace_streams.core.errors import TableGone
from headrace_streams.plan.describe import as_data
from headrace_streams.ports import TopicFacts
from headrace_streams.runtime.globals import Globals
from headrace_streams.testing import Driver
from headrace_streams.worker_process import Ending, ending_of


def orders(app: App) -> Stream:
    return app.stream("orders", value=json("airline string, n bigint"), key="user")


def program(how: str = "inner", on: str = "airline", **more: Any) -> App:
    app = App("global")
    airlines = app.global_table("airlines", value=json("name string, seats bigint"), key="code", **more)
    orders(app).join(airlines, on=on, how=how).to("out")
    return app


AA, BA = {"code": "AA", "name": "American", "seats": 3}, {"code": "BA", "name": "British", "seats": 5}


@pytest.mark.parametrize("how", ["inner", "left"])
def test_rows_of_all_partitions_find_what_there_is(how: str) -> None:
    with Driver(program(how), partitions=3) as driver:
        driver.pipe("airlines", [AA, BA])
        driver.pipe("airlines", [{**BA, "seats": 7}])
        driver.pipe_raw("airlines", [b"AA", None], [None, b'{"name": "no key"}'])
        driver.pipe(
            "orders", [{"user": user, "airline": code, "n": 1} for user in "abc" for code in ("AA", "BA", None)]
        )
        driver.crash()
        driver.restart()
        found = driver.read("out")
    british = [row for row in found if row["name"] is not None]
    assert sorted(row["user"] for row in british) == ["a", "b", "c"]
    assert all((row["code"], row["seats"]) == ("BA", 7) for row in british)
    alone = [(row["user"], row["airline"], row["code"]) for row in found if row["name"] is None]
    expected = [(user, code, None) for user in "abc" for code in ("AA", None)] if how == "left" else []
    assert sorted(alone, key=repr) == sorted(expected, key=repr)


def test_the_key_of_a_row_and_columns_of_one_name() -> None:
    app = App("global")
    users = app.global_table("users", value=json("n bigint"), key="user")
    orders(app).join(users, suffix="_2").to("by-key")
    orders_by_airline = app.graph.nodes[0]
    assert orders_by_airline.topics == ("orders",)
    with Driver(app) as driver:
        driver.pipe("users", [{"user": "a", "n": 7}])
        driver.pipe("orders", [{"user": "a", "airline": "AA", "n": 1}, {"user": "b", "n": 1}])
        assert driver.read("by-key") == [{"airline": "AA", "n": 1, "user": "a", "n_2": 7}]


def test_numbers_are_looked_up_as_their_text() -> None:
    app = App("global")
    numbered = app.global_table("numbered", value=json("name string"), key="id")
    orders(app).join(numbered, on="n").select("name").to("out")
    with Driver(app) as driver:
        driver.pipe("numbered", [{"id": "5", "name": "five"}])
        driver.pipe("orders", [{"user": "a", "n": 5}, {"user": "a", "n": None}])
        assert driver.read("out") == [{"name": "five"}]


def test_state_and_tasks_do_not_depend_on_it() -> None:
    app = App("global")
    airlines = app.global_table("airlines", value=json("name string"), key="code")
    orders(app).join(airlines, on="airline").group_by("name", name="by-name").agg(n=agg.count(), name="n").to("out")
    with Driver(app, partitions=2) as driver:
        driver.pipe("airlines", [{"code": "AA", "name": "American"}])
        driver.pipe("orders", [{"user": user, "airline": "AA"} for user in "abc"])
        assert driver.store("n") == [{"name": "American", "n": 3}]
    parts = [(part["name"], part["reads"]) for part in as_data("global", app.graph)["sub_topologies"]]
    assert parts == [("orders", ["orders"]), ("by-name", ["global.by-name.repartition"])]


def test_what_the_program_writes_into_it_is_found() -> None:
    app = App("global")
    totals = app.global_table("totals", value=json("n bigint"), key="user")
    app.stream("orders", value=json("n bigint"), key="user").to("totals")
    app.stream("asks", value=string, key="user").join(totals).select("n").to("out")
    with Driver(app) as driver:
        driver.pipe("orders", [{"user": "a", "n": 4}])
        driver.commit()
        driver.pipe("asks", [{"user": "a", "value": "?"}])
        assert driver.read("out") == [{"n": 4}]


def test_records_that_cannot_be_read() -> None:
    failed = pytest.raises(RowFailed, match=r"global_table .*: the record of airlines-0 at offset 1 failed")
    with Driver(program()) as driver, failed:
        driver.pipe_raw("airlines", [b"AA", b"BA"], [b'{"name": "American"}', b"no json"])
    with Driver(program(on_error="skip")) as driver:
        driver.pipe_raw("airlines", [b"BA", b"AA"], [b"no json", b'{"name": "American"}'])
        driver.pipe("orders", [{"user": "a", "airline": code} for code in ("AA", "BA")])
        assert [row["name"] for row in driver.read("out")] == ["American"]
        assert [table.failed for table in driver._tables.values()] == [1]


def test_refused() -> None:
    app, other = App("a"), App("b")
    table = app.global_table("t", value=json("n bigint"), key="user")
    stream = orders(app)
    plain = app.table("u", value=json("m bigint"), key="user", name="u")
    wrong: dict[str, Any] = {
        "there is one of 't' already": lambda: app.global_table("t", value=string),
        r"stream \(.*\) reads the topic 'orders' too": lambda: app.global_table("orders", value=string),
        "global_table .* reads the topic 't' too|the topic 't' too": lambda: app.stream("t", value=string),
        "choose 'fail' or 'skip': it writes no dead letters": lambda: app.global_table("x", value=string, on_error="d"),
        "cannot|name": lambda: app.global_table("x y", value=string),
        "there is no column 'missing'": lambda: stream.join(table, on="missing"),
        "both sides have a column 'n'": lambda: stream.join(table),
        "how is 'outer'; choose 'inner', 'left'": lambda: stream.join(table, how="outer"),
        "belong to different apps": lambda: orders(other).join(table, suffix="_2"),
        "on= is for global tables": lambda: stream.join(plain, on="airline"),
        "are for joins of two streams": lambda: stream.join(table, within="1m"),
    }
    for message, build in wrong.items():
        with pytest.raises(NotAllowed, match=message):
            build()


def test_dead_letters_of_the_app_are_not_for_it() -> None:
    app = App("a", on_error="dead")
    app.global_table("t", value=json("n bigint"))
    (table,) = (one.rows() for one in app.graph.globals)
    with pytest.raises(RowFailed):
        table.apply("t", 0, raw([(b"a", b"no json", 0)]))


def test_a_record_without_a_key_changes_nothing() -> None:
    app = App("a")
    app.global_table("t", value=json("n bigint"))
    (table,) = (one.rows() for one in app.graph.globals)
    table.apply("t", 0, raw([(b"a", {"n": 0}, 0)]))
    table.apply("t", 0, raw([(b"a", {"n": 1}, 0), (None, {"n": 2}, 0)]))
    assert table.lookup([b"a"]).rows["n"].to_pylist() == [1]


class Log:
    """Partitions that give what they hold, one record a poll; None is a marker."""

    def __init__(self, records: dict[TopicPartition, list[int | None]]) -> None:
        self.records = records
        self.positions: dict[TopicPartition, int] = {}
        self.assigned: list[dict[TopicPartition, int]] = []

    async def assign(self, positions: dict[TopicPartition, int]) -> None:
        self.assigned.append(dict(positions))
        self.positions = {at: max(0, offset) for at, offset in positions.items()}

    async def ends(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return {at: len(self.records[at]) for at in partitions}

    async def poll(self, timeout_ms: float, max_rows: int) -> list[PartitionTable]:
        for at, offset in self.positions.items():
            if offset < len(self.records[at]):
                self.positions[at] += 1
                n = self.records[at][offset]
                table = raw([] if n is None else [(b"k%d" % at.partition, {"n": n}, 0)], offset)
                return [PartitionTable(at.topic, at.partition, table, offset + 1, -1, -1, -1)]
        return []


async def test_a_worker_reads_all_of_it_first_and_then_on() -> None:
    async def compute(call: Any, *args: Any) -> Any:
        return call(*args)

    app = App("a")
    app.global_table("t", value=json("n bigint"))
    log = Log({TopicPartition("t", n): [n, n + 10, None] for n in range(3)})
    outside: Any = type("Outside", (), {"globals": log, "compute": staticmethod(compute)})
    patience: Any = type("Patience", (), {"ask": staticmethod(lambda call: call())})
    tables = Globals(app.graph, outside, patience)

    def rows() -> list[Any]:
        found = tables.tables["t"].lookup([b"k0", b"k1", b"k2"]).rows
        assert isinstance(found, pa.Table)
        return found["n"].to_pylist()

    await tables.read({"t": TopicFacts("t", 2)})
    assert rows() == [10, 11, None]
    log.records[TopicPartition("t", 0)].append(20)
    await tables.poll()
    assert rows() == [20, 11, None]
    await tables.read({"t": TopicFacts("t", 3)})
    assert rows() == [20, 11, 12]
    await tables.read({"t": TopicFacts("t", 3)})
    assert log.assigned == [
        {TopicPartition("t", 0): -1, TopicPartition("t", 1): -1},
        {TopicPartition("t", 0): 4, TopicPartition("t", 1): 3, TopicPartition("t", 2): -1},
    ]


async def test_a_topic_that_was_made_anew_is_read_by_another_start() -> None:
    class Recreated(Log):
        async def poll(self, timeout_ms: float, max_rows: int) -> list[PartitionTable]:
            error = PositionOutOfRange("to do: reset the app")
            error.partition = TopicPartition("t", 0)
            raise error

    app = App("a")
    app.global_table("t", value=json("n bigint"))
    outside: Any = type("Outside", (), {"globals": Recreated({TopicPartition("t", 0): [1]})})
    patience: Any = type("Patience", (), {"ask": staticmethod(lambda call: call())})
    with pytest.raises(TableGone, match=r"^t-0 was made anew, .* a start of the worker reads this") as told:
        await Globals(app.graph, outside, patience).read({"t": TopicFacts("t", 1)})
    assert ending_of(told.value) is Ending.LOST, "its parent starts it again"
