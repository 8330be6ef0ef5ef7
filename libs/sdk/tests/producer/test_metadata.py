"""What a client believes about the cluster, and how often it asks; time is the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from libs.common.tests.kit.clock import FakeClock

from headrace._transport.newest import Newest
from headrace.aio._client import ClusterClient, Leader
from headrace.errors import MetadataUnavailable
from headrace.records import TopicPartition
from headrace.settings import ClientSettings
from headrace_common.core.ids import NodeId
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1 import cluster_pb2

ZERO = TopicPartition("t", 0)


class Answers:
    """What brokers say of a topic ``t``; of ``port.Transport`` what is asked here."""

    def __init__(self, note: Callable[[], None]) -> None:
        self.revision, self.feature_level, self.incarnation = 1, 0, bytes(16)
        self.topic_id = b"t" * 16
        self.leaders = {0: (1, 0), 1: (2, 0)}
        """Leader and epoch, by partition."""
        self._note = note

    def move_leader(self, partition: int, broker: int) -> None:
        """-1: nobody leads."""
        self.revision += 1
        self.leaders[partition] = broker, self.leaders[partition][1] + 1

    async def metadata(self, request: pb.MetadataRequest, *, elsewhere: bool = False) -> pb.MetadataResponse:
        del request, elsewhere
        await asyncio.sleep(0)
        self._note()
        answer = told("c", self.incarnation, self.revision)
        answer.feature_level = self.feature_level
        for broker in (1, 2, 3):
            answer.nodes.add(role=cluster_pb2.BROKER, id=broker).grpc.port = broker
        topic = answer.topics.add(name="t", topic_id=self.topic_id, max_message_bytes=1 << 20)
        for partition, (leader, epoch) in self.leaders.items():
            topic.partitions.add(partition=partition, leader=leader, leader_epoch=epoch)
        return answer

    async def close(self) -> None: ...


class Asked:
    """A client, its clock, and when it has asked the cluster."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.times: list[float] = []
        self.cluster = Answers(lambda: self.times.append(self.clock.monotonic_ms()))
        self.client = ClusterClient(self.cluster, ClientSettings(), clock=self.clock)

    async def pass_ms(self, ms: int, *, repeat: bool = False) -> int:
        """How often it asks meanwhile; with ``repeat`` somebody doubts again twice a second."""
        before = len(self.times)
        for _ in range(ms // 10):
            await self.clock.advance(10)
            if repeat and self.clock.monotonic_ms() % 500 == 0:
                self.client.doubt(ZERO, 0, "again")
        return len(self.times) - before


@pytest.fixture
async def asked() -> AsyncIterator[Asked]:
    made = Asked()
    topic = asyncio.ensure_future(made.client.topic("t", 1e9))
    await made.clock.advance(10)
    await topic
    await made.clock.advance(60_000)
    yield made
    await made.client.close()


async def test_a_leader_in_doubt_is_asked_for_ten_times_a_second_until_a_newer_is_known(asked: Asked) -> None:
    asked.client.doubt(ZERO, 0, "it refused")
    assert 9 <= await asked.pass_ms(1_000) <= 11
    asked.cluster.move_leader(0, 2)
    assert await asked.pass_ms(1_000) == 1
    assert asked.client.leader(ZERO) == (2, 1)
    assert not asked.client.doubting


async def test_a_leader_that_answers_again_is_not_asked_for(asked: Asked) -> None:
    asked.client.doubt(ZERO, 0, "its connection broke")
    await asked.pass_ms(50)
    asked.client.trust(ZERO)
    assert await asked.pass_ms(2_000) <= 1


async def test_nobody_is_not_a_newer_leader(asked: Asked) -> None:
    asked.client.doubt(ZERO, 0, "it refused")
    asked.cluster.move_leader(0, -1)
    assert await asked.pass_ms(1_000) >= 9


async def test_urgency_ends_and_so_does_a_doubt_that_nobody_repeats(asked: Asked) -> None:
    asked.client.doubt(ZERO, 0, "it refused")
    await asked.pass_ms(12_000, repeat=True)
    assert await asked.pass_ms(10_000, repeat=True) <= 15, "now it backs off to the longest pause"
    await asked.pass_ms(4_000)
    assert await asked.pass_ms(10_000) == 0


async def test_a_doubt_ends_a_pause_that_is_under_way(asked: Asked) -> None:
    for _ in range(6):
        asked.client.refresh("for any reason")
        await asked.pass_ms(1_000)
    asked.client.refresh("once more, which waits a second")
    await asked.pass_ms(100)
    asked.client.doubt(ZERO, 0, "it refused")
    assert await asked.pass_ms(100) >= 1


async def test_a_hint_that_is_newer_than_metadata_is_believed_and_checked(asked: Asked) -> None:
    asked.client.hint(ZERO, Leader(NodeId(3), 1))
    asked.client.doubt(ZERO, 0, "it named another")
    assert asked.client.leader(ZERO) == (3, 1)
    assert not asked.client.doubting
    assert await asked.pass_ms(1_000) == 1


async def test_hints_of_a_topic_end_with_it(asked: Asked) -> None:
    asked.client.hint(ZERO, Leader(NodeId(3), 7))
    asked.cluster.topic_id = b"u" * 16
    asked.client.refresh("it may be another")
    await asked.pass_ms(1_000)
    assert asked.client.leader(ZERO) == (1, 0)


async def test_who_is_asked_elsewhere_once_is_asked_as_usual_then(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked()
    ways: list[bool] = []
    transport = asked.client.transport
    answer = transport.metadata

    async def metadata(request: Any, *, elsewhere: bool = False) -> Any:
        ways.append(elsewhere)
        return await answer(request, elsewhere=elsewhere)

    monkeypatch.setattr(transport, "metadata", metadata)
    topic = asyncio.ensure_future(asked.client.topic("t", 1e9))
    await asked.pass_ms(10)
    await topic
    for elsewhere in (True, False):
        await asked.pass_ms(2_000)
        asked.client.refresh("a leader is silent", elsewhere=elsewhere)
    await asked.pass_ms(2_000)
    await asked.client.close()
    assert ways == [False, True, False]


async def test_metadata_that_was_restored_counts_from_the_beginning_and_is_believed(asked: Asked) -> None:
    """The same cluster on a new etcd: revisions are low again, and leader epochs may be."""
    asked.cluster.revision = 5_000
    asked.cluster.move_leader(0, 2)
    asked.client.doubt(ZERO, 0, "it refused")
    await asked.pass_ms(1_000)
    assert asked.client.leader(ZERO) == (2, 1)
    asked.cluster.revision = 5
    asked.cluster.move_leader(0, 1)
    asked.client.doubt(ZERO, 1, "it refused")
    await asked.pass_ms(1_000)
    assert asked.client.leader(ZERO) == (2, 1), "the same metadata, of a broker that is behind"
    asked.cluster.incarnation = b"r" * 16
    await asked.pass_ms(1_000)
    assert asked.client.leader(ZERO) == (1, 2)
    assert not asked.client.doubting
    assert (await asked.client.everything()).revision == asked.cluster.revision


async def test_what_leaders_said_before_a_restore_is_forgotten(asked: Asked) -> None:
    asked.client.hint(ZERO, Leader(NodeId(3), 900))
    asked.client.doubt(ZERO, 900, "it refused")
    await asked.pass_ms(1_000)
    assert asked.client.leader(ZERO) == (3, 900)
    assert asked.client.doubting
    asked.cluster.incarnation = b"r" * 16
    await asked.pass_ms(1_000)
    assert asked.client.leader(ZERO) == (1, 0)
    assert not asked.client.doubting


async def test_everything_that_was_restored_is_learned_and_what_a_broker_that_is_behind_tells_is_not(
    asked: Asked,
) -> None:
    asked.cluster.revision = 5_000
    asked.cluster.move_leader(0, 2)
    await asked.client.everything()
    assert asked.client.leader(ZERO) == (2, 1)
    asked.cluster.revision = 5
    asked.cluster.move_leader(0, 1)
    with pytest.raises(MetadataUnavailable):
        await asked.client.everything()
    asked.cluster.incarnation = b"r" * 16
    await asked.client.everything()
    assert asked.client.leader(ZERO) == (1, 2)


def told(cluster: str, incarnation: bytes, revision: int) -> pb.MetadataResponse:
    return pb.MetadataResponse(cluster_id=cluster, incarnation=incarnation, revision=revision)


def test_what_is_newer() -> None:
    newest = Newest()
    newest.take(told("c", b"", 100))
    assert newest.is_behind(told("c", b"", 99))
    assert newest.is_behind(told("c", b"a", 99)), "the first that tells an incarnation is of the same"
    newest.take(told("c", b"a", 100))
    assert newest.is_behind(told("c", b"", 99)), "a broker of an older version"
    assert not newest.is_behind(told("c", b"", 101))
    newest.take(told("c", b"", 101))
    assert newest.is_another(told("c", b"b", 1)), "that one forgot nothing"
    newest.take(told("c", b"b", 1))
    assert newest.is_behind(told("c", b"b", 0))
    assert not newest.is_behind(told("d", b"", 0))
    newest.take(told("d", b"", 0))
    assert not newest.is_another(told("d", b"e", 0)), "nothing is left of the other cluster"


def test_the_feature_level_never_falls_within_a_cluster() -> None:
    newest = Newest()
    first = told("c", b"a", 1)
    newest.take(first)
    assert newest.feature_level == 0
    first.feature_level = 2
    newest.take(first)
    newest.take(told("c", b"", 3))
    assert newest.feature_level == 2, "a broker of an older version says nothing of it"
    newest.take(told("d", b"e", 0))
    assert newest.feature_level == 0, "another cluster has its own"


async def test_everything_that_is_asked_brings_the_feature_level(asked: Asked) -> None:
    assert asked.client.feature_level == 0
    asked.cluster.feature_level = 1
    await asked.client.everything()
    assert asked.client.feature_level == 1
