"""The same program by both engines over the same records: equal records, byte for byte."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from headrace.testing import TestCluster
from headrace_streams import App, agg, cogroup, col, hopping, json, lit, session, string, struct, tumbling, when
from headrace_streams.spark import start
from headrace_streams.testing import Driver

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
ENDED_S = 120
PARTITIONS = 2
FLIGHTS = json("carrier string, route array<string>, delay bigint, fare double, late boolean, at timestamp, day date")
FAR_MS = 10_000_000
Rows = Mapping[str, Sequence[Mapping[str, Any]]]
Program = Callable[[App, Mapping[str, str]], None]


def flights(count: int = 400, seed: int = 7) -> list[dict[str, Any]]:
    """Flights whose times are up to 3 s out of order; the last rows of each partition end all windows."""
    chance = random.Random(seed)
    rows: list[dict[str, Any]] = [
        {
            "_key": chance.choice(["AA", "DL", "é", None]),
            "carrier": chance.choice(["AA", "DL", "é\"'", "", None]),
            "route": chance.choice([None, [], ["HAM"], ["HAM", None, "BER"]]),
            "delay": chance.choice([None, *range(-5, 60)]),
            "fare": chance.choice([*[None] * 80, -0.0, *(n / 4 for n in range(-20, 400))]),
            "late": chance.choice([None, True, False]),
            "at": number * 250 - chance.randrange(3_000) + 10_000,
            "day": chance.choice([None, 0, 20_000]),
        }
        for number in range(count)
    ]
    return [*rows, *({"_key": key, "carrier": "end", "delay": 1, "at": FAR_MS} for key in ("AA", "DL", "é", "b", "c"))]


@dataclass
class Engines:
    spark: SparkSession
    cluster: TestCluster
    home: Path

    def topics(self, names: Sequence[str]) -> dict[str, str]:
        return {name: self.cluster.unique_topic(name, PARTITIONS, retention_ms="-1") for name in names}

    def streams(self, app: App, given: Rows, wanted: Sequence[str]) -> dict[str, Counter[Any]]:
        """What Streams writes, and with it what was read: the same records for Spark."""
        with Driver(app, partitions=PARTITIONS, seed=3) as driver:
            for topic, rows in given.items():
                driver.pipe(topic, rows)
            found = {topic: Counter((r["key"], r["value"]) for r in driver.read_raw(topic)) for topic in wanted}
            for topic in given:
                for partition in range(PARTITIONS):
                    self._fill(topic, partition, driver._log(topic, partition).records)
        return found

    def _fill(self, topic: str, partition: int, records: pa.Table) -> None:
        if records.num_rows:
            of = pa.array([partition] * records.num_rows, pa.int32())
            with self.cluster.producer() as producer:
                table = records.select(["key", "value", "timestamp_ms"]).append_column("partition", of)
                producer.send_table(topic, table).result(timeout=30)

    def by_spark(self, app: App, expected: Mapping[str, Counter[Any]]) -> dict[str, Counter[Any]]:
        options = {"kafka.bootstrap.servers": ",".join(self.cluster.bootstrap_servers), "maxOffsetsPerTrigger": "150"}
        query = start(app, self.spark, str(self.home / "checkpoint"), options=options, available_now=True)
        assert query.awaitTermination(ENDED_S), query.status
        return {topic: self.written(topic, sum(records.values())) for topic, records in expected.items()}

    def written(self, topic: str, count: int) -> Counter[Any]:
        found: Counter[Any] = Counter()
        with self.cluster.consumer(topic, isolation_level="read_committed") as consumer:
            while found.total() < count and (polled := consumer.poll(timeout_ms=10_000)):
                found.update((record.key, record.value) for record in polled)
            found.update((record.key, record.value) for record in consumer.poll(timeout_ms=300))
        return found

    def check(self, program: Program, sources: Rows, sinks: Sequence[str], **more: Any) -> None:
        topics = self.topics([*sources, *sinks])
        app = App("both", **more)
        program(app, topics)
        given = {topics[name]: rows for name, rows in sources.items()}
        expected = self.streams(app, given, [topics[name] for name in sinks])
        assert all(expected.values()), "each topic is written"
        found = self.by_spark(app, expected)
        assert {topic: (found[topic] - records, records - found[topic]) for topic, records in expected.items()} == {
            topic: (Counter(), Counter()) for topic in expected
        }


@pytest.fixture
def engines(spark: SparkSession, headrace_cluster: TestCluster, tmp_path: Path) -> Engines:
    return Engines(spark, headrace_cluster, tmp_path)


def columns(app: App, topics: Mapping[str, str]) -> None:
    rows = app.stream(topics["flights"], value=FLIGHTS, timestamp="at", key="id")
    split = rows.rename(fare="price").split(
        big=col("price") > 50, small=col("price") <= 50, late=col("late"), rest=lit(True)
    )
    split["big"].with_columns(
        eur=col("price") * 0.5, total=col("delay") + 1, kind=when(col("late")).then(lit("late")).otherwise(lit("-"))
    ).to(topics["big"])
    split["small"].merge(split["rest"]).drop_nulls("carrier").select(
        "carrier", "at", "day", hour=col("at").dt.truncate("1h"), ratio=col("delay") / 7
    ).key_by("carrier").to(topics["others"])
    rows.explode("route").key_by("route", "day").select("route").to(topics["stops"], value=string)
    split["late"].key_by("delay").to(topics["late"])


def test_columns(engines: Engines) -> None:
    engines.check(columns, {"flights": flights()}, ["big", "others", "stops", "late"])


def windowed(window: Any, *keys: str) -> Program:
    def program(app: App, topics: Mapping[str, str]) -> None:
        rows = app.stream(topics["flights"], value=FLIGHTS, timestamp="at")
        rows.group_by(*keys, name="by").window(window, late="drop").agg(
            n=agg.count(),
            carriers=agg.count("carrier"),
            delays=agg.sum("delay"),
            fares=agg.sum(col("fare") * 2),
            mean=agg.mean("delay"),
            least=agg.min("fare"),
            most=agg.max("at"),
            first_day=agg.min("day"),
            name_most=agg.max("carrier"),
            any_late=agg.any("late"),
            all_late=agg.all("late"),
            different=agg.distinct("delay"),
            name="flights",
            emit="final",
        ).with_columns(twice=col("n") * 2).to(topics["out"])

    return program


@pytest.mark.parametrize(
    ("window", "keys"),
    [
        (tumbling("10s", grace="5s"), ("carrier",)),
        (hopping("10s", "3s", grace="5s", offset="-1s"), ("carrier", "late")),
        (session("1s", grace="5s"), ("carrier",)),
        (tumbling("7s", grace="5s"), ()),
    ],
)
def test_windows(engines: Engines, window: Any, keys: tuple[str, ...]) -> None:
    engines.check(windowed(window, *keys), {"flights": flights()}, ["out"])


def combined(app: App, topics: Mapping[str, str]) -> None:
    rows = app.stream(topics["flights"], value=FLIGHTS, timestamp="at")
    grouped = (
        rows.filter(col("delay") > 0).group_by("carrier", name="by").window(tumbling("10s", grace="5s"), late="drop")
    )
    kinds = {"n": agg.count(), "fares": agg.count("fare"), "delays": agg.sum("delay"), "least": agg.min("at")}
    grouped.agg(**kinds, any=agg.any("late"), name="flights", emit="final").to(topics["out"])


def test_what_is_combined_before_a_repartition_topic(engines: Engines) -> None:
    engines.check(combined, {"flights": flights()}, ["out"])


def cogrouped(app: App, topics: Mapping[str, str]) -> None:
    flights_, fares = (
        app.stream(topics[name], value=FLIGHTS, timestamp="at", key="id").group_by("id")
        for name in ("flights", "fares")
    )
    both = cogroup(n=(flights_, agg.count()), fares=(fares, agg.sum("fare")), late=(flights_, agg.any("late")))
    both.window(tumbling("10s", grace="5s"), late="drop").agg(name="both", emit="final").to(topics["out"])


def test_cogroup(engines: Engines) -> None:
    engines.check(cogrouped, {"flights": flights(), "fares": flights(seed=8)}, ["out"])


@pytest.mark.parametrize("how", ["inner", "left", "outer"])
def test_joins_of_two_streams(engines: Engines, how: str) -> None:
    def program(app: App, topics: Mapping[str, str]) -> None:
        left = app.stream(topics["flights"], value=FLIGHTS, timestamp="at", key="id").select("id", "delay")
        right = app.stream(topics["fares"], value=FLIGHTS, timestamp="at", key="id").select("id", "fare", "delay")
        left.join(right, within=("-1s", "2s"), grace="5s", how=how, suffix="_2", late="drop", name="pairs").to(
            topics["out"]
        )

    engines.check(program, {"flights": flights(), "fares": flights(seed=8)}, ["out"])


@dataclass
class Carrier:
    name: str
    country: str | None = None


@pytest.mark.parametrize("how", ["inner", "left"])
def test_a_join_with_a_table(engines: Engines, how: str) -> None:
    def program(app: App, topics: Mapping[str, str]) -> None:
        carriers = app.table(topics["carriers"], value=struct(Carrier), key="id", name="carriers")
        rows = app.stream(topics["flights"], value=FLIGHTS, timestamp="at")
        known = carriers.filter(col("name") != "gone").with_columns(long=col("name").str.len_chars())
        rows.select("carrier", "delay").join(known, how=how).to(topics["out"])

    carriers = [
        {"id": key, "name": name}
        for key, name in (("AA", "American"), ("DL", "Delta"), ("AA", "American Airlines"), ("é", "gone"))
    ]
    engines.check(program, {"carriers": carriers, "flights": flights()}, ["out"])


@pytest.mark.parametrize("on_error", ["skip", "fail"])
def test_records_that_cannot_be_read(engines: Engines, on_error: str) -> None:
    topics = engines.topics(["flights", "out"])
    app = App("both", on_error=on_error)
    app.stream(topics["flights"], value=json("n bigint")).to(topics["out"])
    values: list[bytes | None] = [b'{"n": 1}', b'{"n": "one"}', b"not JSON", None, b'{"n": 2}']
    table = pa.table({"key": pa.array([None] * 5, pa.binary()), "value": pa.array(values, pa.binary())})
    engines._fill(topics["flights"], 1, table.append_column("timestamp_ms", pa.array([1] * 5, pa.int64())))
    if on_error == "skip":
        expected = {topics["out"]: Counter([(None, b'{"n":1}'), (None, b'{"n":2}')])}
        assert engines.by_spark(app, expected) == expected
    else:
        with pytest.raises(Exception, match=f"the record of {topics['flights']}-1 at offset 1 failed"):
            engines.by_spark(app, {})


def test_a_session_in_which_expressions_differ_is_refused(engines: Engines) -> None:
    app = App("both")
    app.stream("flights", value=FLIGHTS).to("out")
    engines.spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        with pytest.raises(Exception, match=r"spark\.sql\.session\.timeZone=UTC"):
            start(app, engines.spark, str(engines.home / "checkpoint"))
    finally:
        engines.spark.conf.set("spark.sql.session.timeZone", "UTC")
