"""
What only members of classic groups do: the leader computes who gets what, and others tell it what its assignor asks.

A group that is not classic has its coordinator for that. ``_group`` owns one; it lives on the loop thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping

from headrace._core.group_messages import Compute, Partitions
from headrace._core.own_assignors import check_shares, check_user_data
from headrace._runtime import in_thread
from headrace._transport.newest import Newest
from headrace._transport.port import Transport
from headrace.aio._group_wire import GroupWire
from headrace.consumer_settings import ConsumerSettings
from headrace.errors import NetworkFailed, Rejected
from headrace_common.core.assignors import Racks, assign, racks_of
from headrace_common.core.ids import TopicPartition
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1 import cluster_pb2


class ClassicLeader:
    """Everything here raises ``HeadraceError``: brokers did not answer, or the application's assignor failed."""

    def __init__(self, transport: Transport, settings: ConsumerSettings, wire: GroupWire) -> None:
        self._transport = transport
        self._settings = settings
        self._wire = wire
        self._newest = Newest()

    @property
    def tells_user_data(self) -> bool:
        """Whether an assignor of the application has something for its leader."""
        return any(hasattr(own, "user_data") for own in self._settings.assignors.values())

    async def user_data(self, topics: Collection[str]) -> dict[str, bytes]:
        """What assignors tell their leader, by their names."""
        return await in_thread(lambda: self._user_data(topics))

    def _user_data(self, topics: Collection[str]) -> dict[str, bytes]:
        """On a thread of its own: it is the application's code."""
        told: dict[str, bytes] = {}
        for name, own in self._settings.assignors.items():
            ask = getattr(own, "user_data", None)
            if ask is not None:
                with _raising(name):
                    given = ask(topics)
                told[name] = check_user_data(name, given)
        return told

    async def compute(self, wanted: Compute) -> tuple[dict[str, Partitions], dict[str, int]]:
        """What each member gets, and how many partitions the topics have."""
        topics = sorted({topic for member in wanted.members.values() for topic in member.topics})
        counts, racks = await self._topic_layout(topics)
        shares = await in_thread(lambda: self._assign(wanted, counts, racks))
        return shares, {topic: counts.get(topic, 0) for topic in topics}

    def _assign(self, wanted: Compute, counts: Mapping[str, int], racks: Racks) -> dict[str, Partitions]:
        """On a thread of its own: a large group takes a while."""
        own = self._settings.assignors.get(wanted.protocol)
        if own is not None:
            with _raising(wanted.protocol):
                given = own.assign(wanted.members, counts)
            return dict(check_shares(wanted.protocol, given, wanted.members, counts))
        shares = assign(wanted.protocol, wanted.members, counts, racks)
        return {
            member: frozenset(TopicPartition(topic, n) for topic, numbers in share.items() for n in numbers)
            for member, share in shares.items()
        }

    async def topic_sizes(self, topics: Collection[str] | None) -> dict[str, int]:
        """Partition counts of these topics, or of all that are not internal."""
        return (await self._topic_layout(topics))[0]

    async def _topic_layout(self, topics: Collection[str] | None) -> tuple[dict[str, int], Racks]:
        """Partition counts, and the racks of replicas; racks of brokers that are down are not known."""
        request = pb.MetadataRequest(all_topics=topics is None, topics=topics or ())
        answer = await self._transport.metadata(request)
        if self._newest.is_behind(answer):
            raise NetworkFailed("the broker that was asked knows less than another did; ask again")
        self._newest.take(answer)
        found = [t for t in answer.topics if not t.error and not t.internal]
        self._wire.learn_ids({t.name: t.topic_id for t in found})
        by_node = {node.id: node.rack for node in answer.nodes if node.role == cluster_pb2.BROKER and node.rack}
        racks = {t.name: [racks_of(p.replicas, by_node) for p in t.partitions] for t in found} if by_node else {}
        return {t.name: len(t.partitions) for t in found}, racks


@contextlib.contextmanager
def _raising(assignor: str) -> Iterator[None]:
    """What the application's assignor raises is told by its name."""
    try:
        yield
    except (Exception, SystemExit) as error:  # the latter would end the loop of all clients
        raise Rejected(f"the assignor {assignor!r} raised {type(error).__name__}: {error}") from error
