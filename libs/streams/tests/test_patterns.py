"""Topics by a pattern: matched at the start, and again while the program runs."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.records import TopicPartition
from headrace_common.core.errors import UnknownTopicOrPartition
from headrace_streams import App, NotAllowed, Stream, agg, json
from headrace_streams.adapters.memory_store import MemoryStores
from headrace_streams.config import StreamsConfig
from headrace_streams.plan.compare import Fate, compare
from headrace_streams.plan.cut import Assembly, on_topics
from headrace_streams.plan.describe import as_data, as_mermaid
from headrace_streams.plan.known import Known
from headrace_streams.ports import InternalTopic, Shared, TopicFacts
from headrace_streams.runtime.assembling import Assembling
from headrace_streams.runtime.worker import Worker
from headrace_streams.testing import Driver

ORDERS = re.compile(r"orders-\w+")


def orders(app: App, pattern: Any = ORDERS, **more: Any) -> Stream:
    return app.stream(pattern, value=json("n bigint"), key="user", name="orders", **more)


def sums(**more: Any) -> App:
    app = App("patterns", **more)
    orders(app).group_by("user").agg(n=agg.sum("n"), name="sums").to("out")
    return app


def matched(app: App, *topics: str) -> list[str]:
    return [topic for node in on_topics(app.name, app.graph, app.on_error, topics).patterns for topic in node.topics]


def test_whole_names_are_matched_and_those_the_program_names_itself_are_not() -> None:
    app = App("patterns", on_error="orders-dead")
    orders(app, re.compile(".*")).to("orders-out")
    app.stream("orders-named", value=json("n bigint"), on_error="orders-lost").to("out")
    internal = ["patterns.orders.changelog", "patterns.by-user.repartition", "patterns.being-reset"]
    named = ["orders-dead", "orders-lost", "orders-out", "orders-named", "out"]
    assert matched(app, "b", "a", *internal, *named, "other.x.changelog") == ["a", "b", "other.x.changelog"]
    assert matched(sums(), "orders-eu", "my-orders-eu", "orders-eu.2", "orders-us") == ["orders-eu", "orders-us"]


@pytest.mark.parametrize("seed", range(4))
def test_a_topic_that_comes_later_is_read_from_its_beginning(seed: int) -> None:
    with Driver(sums(), partitions=3, seed=seed) as driver:
        assert driver.read("out") == []
        driver.pipe("orders-eu", [{"user": user, "n": 1} for user in "abc"])
        driver.pipe("orders-us", [{"user": user, "n": 10} for user in "ab"])
        driver.crash()
        driver.pipe("orders-asia", [{"user": "a", "n": 100}])
        driver.restart()
        driver.pipe("orders-eu", [{"user": "c", "n": 1}])
        found = sorted((row["user"], row["n"]) for row in driver.store("sums"))
        assert found == [("a", 111), ("b", 11), ("c", 2)]
        with pytest.raises(NotAllowed, match="the program does not read the topic 'payments'"):
            driver.pipe("payments", [{"user": "a", "n": 1}])
        assert sorted((row["user"], row["n"]) for row in driver.store("sums")) == found


def test_behind_a_repartition() -> None:
    app = App("patterns")
    orders(app).group_by("n", name="by-n").agg(rows=agg.count(), name="rows").to("out")
    with Driver(app, partitions={"orders-eu": 2, "orders-us": 2}) as driver:
        driver.pipe("orders-us", [{"user": user, "n": 7} for user in "abc"])
        assert driver.store("rows") == [{"n": 7, "rows": 3}]


def test_topics_of_different_widths_are_refused_by_name() -> None:
    with pytest.raises(NotAllowed, match="orders-eu has 1, orders-us has 2"):
        Driver(sums(), partitions={"orders-eu": 1, "orders-us": 2})


def test_the_names_of_its_topics_and_state_do_not_depend_on_what_is_matched() -> None:
    parts = []
    for topics in (["orders-eu"], ["orders-eu", "orders-us"]):
        app = sums()
        graph = on_topics(app.name, app.graph, app.on_error, topics)
        parts.append(Assembly(app.name, graph, dict.fromkeys(topics, 2)).internal())
    assert parts == [{"patterns.orders.changelog": 2}] * 2


def test_one_more_topic_is_a_safe_change() -> None:
    def data(*topics: str) -> dict[str, Any]:
        app = sums()
        graph = on_topics(app.name, app.graph, app.on_error, topics)
        internal = Assembly(app.name, graph, dict.fromkeys(topics, 2)).internal()
        described = as_data(app.name, graph, internal)
        for part in described["sub_topologies"]:
            part["topic_ids"] = {topic: topic for topic in topics}
        return described

    found = compare(data("orders-eu"), data("orders-eu", "orders-us"))
    assert found
    assert {change.fate for change in found} == {Fate.SAFE}


def test_a_program_without_a_cluster_shows_the_pattern() -> None:
    app = sums()
    (part,) = as_data(app.name, app.graph)["sub_topologies"]
    assert (part["name"], part["reads"]) == ("orders", [r"orders-\w+"])
    assert r'[("orders-\w+")]' in as_mermaid(app.name, app.graph)


def test_refused() -> None:
    with pytest.raises(NotAllowed, match="topics by a pattern need a name for all of them: say name="):
        App("a").stream(ORDERS, value=json("n bigint"))
    with pytest.raises(NotAllowed, match="name= is for topics by a pattern; leave it out"):
        App("a").stream("orders", value=json("n bigint"), name="orders")
    app = App("a")
    orders(app)
    app.stream(re.compile("orders-e.*"), value=json("n bigint"), name="others")
    with pytest.raises(
        NotAllowed, match=r"'orders-eu' is read by stream 'orders' .* and by stream 'others' .*; mend a"
    ):
        matched(app, "orders-us", "orders-eu")


class Cluster:
    """Topics of a cluster, and a clock that passes in sleeps."""

    def __init__(self, **topics: int) -> None:
        self.topics = {name.replace("_", "-"): TopicFacts(name, count) for name, count in topics.items()}
        self.at_ms = 0.0
        self.later: dict[float, dict[str, int]] = {}

    async def names(self) -> list[str]:
        return list(self.topics)

    async def find(self, names: list[str]) -> dict[str, TopicFacts]:
        return {name: self.topics[name] for name in names if name in self.topics}

    async def make(self, topics: list[InternalTopic]) -> dict[str, TopicFacts]:
        self.topics |= {topic.name: TopicFacts(topic.name, topic.partitions) for topic in topics}
        return {topic.name: self.topics[topic.name] for topic in topics}

    async def limits(self, names: list[str]) -> dict[str, Any]:
        return {}

    def monotonic_ms(self) -> float:
        return self.at_ms

    async def sleep_ms(self, ms: float) -> None:
        self.at_ms += ms
        if self.at_ms >= 2_000:
            self.topics |= {name: TopicFacts(name, count) for name, count in self.later.pop(2_000, {}).items()}

    async def shared(self, app: str) -> Shared:
        return Shared()

    async def known(self, app: str) -> Known:
        return Known(app)

    async def starts(self, logs: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(logs, 0)

    async def ends(self, logs: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(logs, 0)

    @property
    def outside(self) -> Any:
        parts = {"topics": self, "clock": self, "stores": MemoryStores(), "changelogs": self}
        return SimpleNamespace(compute=None, look=None, snapshots=None, **parts)


async def test_it_waits_for_a_topic_that_matches() -> None:
    cluster = Cluster(out=1)
    cluster.later = {2_000: {"orders-eu": 2}}
    assembled = await Assembling(sums(), StreamsConfig(), cluster.outside).assemble()
    assert [(label, spec.topics) for label, spec in assembled.specs.items()] == [
        ("orders/0", ("orders-eu",)),
        ("orders/1", ("orders-eu",)),
    ]
    cluster = Cluster(out=1)
    with pytest.raises(UnknownTopicOrPartition, match=r"topics that do not exist: any like orders-\\w\+"):
        await Assembling(sums(), StreamsConfig(), cluster.outside).assemble()


async def test_a_worker_joins_anew_for_a_new_topic_and_for_no_other() -> None:
    cluster = Cluster(out=1, orders_eu=1)
    worker = Worker(sums(), StreamsConfig(), cluster.outside)
    await worker.assemble()
    joined: list[str] = []

    async def get_up() -> None:
        joined.append("up")

    async def join() -> None:
        joined.append(str(worker._assembled.specs["orders/0"].topics))

    worker._get_up, worker._join = get_up, join  # type: ignore[method-assign]
    cluster.topics["payments"] = TopicFacts("payments", 1)
    for at_ms, name in ((30_000, "other"), (40_000, "orders-us"), (60_000, "orders-asia")):
        cluster.at_ms = at_ms
        cluster.topics[name] = TopicFacts(name, 1)
        await worker._look_at_topics()
        if at_ms < 60_000:
            assert joined == []
    assert joined == ["up", "('orders-asia', 'orders-eu', 'orders-us')"]
