"""Members of a group in the lab, what they were told, and how tests wait for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from libs.sdk.tests.kit.cluster import LabCluster

import headrace
from headrace import TopicPartition

PROTOCOLS: dict[str, dict[str, Any]] = {
    "server-side": {"group_protocol": "consumer"},
    "eager": {"group_protocol": "classic", "heartbeat_interval_ms": 50},
    "cooperative": {
        "group_protocol": "classic",
        "heartbeat_interval_ms": 50,
        "partition_assignment_strategy": ["cooperative-sticky"],
    },
}
PATIENCE_S = 20


class Member:
    """One consumer and its story: ("+", [partitions]), ("-", …), ("!", …)."""

    def __init__(self, memory: LabCluster, protocol: str, *topics: str, **settings: Any) -> None:
        self.story: list[tuple[str, list[int]]] = []
        self.values: list[bytes] = []
        subscription = {"pattern": settings.pop("pattern")} if "pattern" in settings else {"topics": topics or ("t",)}
        settings = {"group_id": "g", "retry_backoff_ms": 10, **PROTOCOLS[protocol], **settings}
        self.consumer = memory.consumer(**settings)
        self.consumer.subscribe(
            **subscription, on_assign=self._tell("+"), on_revoke=self._tell("-"), on_lost=self._tell("!")
        )

    def _tell(self, sign: str) -> Callable[[list[TopicPartition]], None]:
        return lambda partitions: self.story.append((sign, [tp.partition for tp in partitions]))

    def poll(self, timeout_ms: float = 5) -> list[headrace.Record]:
        records = self.consumer.poll(timeout_ms=timeout_ms)
        self.values += [record.value for record in records]
        return records

    @property
    def held(self) -> set[int]:
        return {tp.partition for tp in self.consumer.assignment()}

    def close(self) -> None:
        self.consumer.close()


def until(condition: Callable[[], bool], *members: Member) -> None:
    """Let all poll until it is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        for member in members:
            member.poll()
        assert time.monotonic() < deadline, [(m.consumer.state, m.held, m.story) for m in members]


def shared(members: Sequence[Member], partitions: int) -> Callable[[], bool]:
    """Whether each partition has exactly one owner, and none has more than its share."""

    def met() -> bool:
        held = [member.held for member in members]
        fair = max(map(len, held)) - min(map(len, held)) <= 1
        return fair and sorted(p for each in held for p in each) == list(range(partitions))

    return met


def fill(memory: LabCluster, values: Iterable[bytes], partitions: int, topic: str = "t") -> None:
    with memory.producer(linger_ms=0) as producer:
        for number, value in enumerate(values):
            producer.send(topic, value, partition=number % partitions)
        producer.flush()
