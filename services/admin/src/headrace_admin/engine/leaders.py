"""
Asks the leaders of partitions: batched by leader, and again where leadership has moved.

Called by ``log_offsets`` and ``administration``. Answers are per partition; one that nobody could give is its error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

from headrace_admin.ports import Cluster
from headrace_common.core.errors import (
    ErrorCode,
    HeadraceError,
    LeaderNotAvailable,
    NetworkFailed,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from headrace_common.core.ids import NO_NODE, NodeId, PartitionId, TopicPartition
from headrace_common.core.image import ClusterImage
from headrace_common.runtime.clock import limit_ms

K = TypeVar("K", bound=Hashable)
R = TypeVar("R")
Answers: TypeAlias = dict[K, R | HeadraceError]
Ask: TypeAlias = Callable[[NodeId, Mapping[K, PartitionId]], Awaitable[Answers[K, R]]]
"""Asks one leader about partitions that it has."""
Place: TypeAlias = Callable[[ClusterImage, K], PartitionId]
"""The partition that is meant. Raises: HeadraceError where the image does not have it."""

MOVED: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
    }
)
"""After these a newer image may tell another leader, or a topic that is new."""

ENTRIES_MAX: Final = 5_000
"""Partitions of one request."""
_TRIES_MAX: Final = 4
_IMAGE_WAIT_MS: Final = 1_000.0


@dataclass(frozen=True, slots=True)
class Patience:
    """How hard leaders are asked."""

    tries: int = _TRIES_MAX
    """Again where leadership has moved, after a newer image."""
    ask_ms_max: float | None = None
    """How long one leader may take; None: as long as any call may."""


PATIENT: Final = Patience()
HURRIED: Final = Patience(1, 1_500.0)
"""For those who would rather know nothing of some than wait."""


def by_name(image: ClusterImage, partition: TopicPartition) -> PartitionId:
    """
    The partition of this name.

    Raises:
        UnknownTopicOrPartition: there is none.
    """
    topic = image.topic(partition.topic)
    found = None if topic is None else PartitionId(topic.topic_id, partition.partition)
    if found is None or found not in image.partitions:
        raise UnknownTopicOrPartition(f"{partition} does not exist; its topic was deleted, or has fewer partitions")
    return found


def by_id(image: ClusterImage, partition: PartitionId) -> PartitionId:
    """
    The partition of this id.

    Raises:
        UnknownTopicId, UnknownTopicOrPartition: there is none.
    """
    topic = image.topics.get(partition.topic_id)
    if topic is None:
        raise UnknownTopicId("no topic has this id; it was deleted, or is too new; describe it and try again")
    if partition not in image.partitions:
        last = topic.partition_count - 1
        raise UnknownTopicOrPartition(f"partition {partition.partition} does not exist; the topic has 0 to {last}")
    return partition


class Leaders:
    """Stateless; any number of calls at one time on one event loop."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def ask(
        self, partitions: Iterable[K], place: Place[K], ask: Ask[K, R], patience: Patience = PATIENT
    ) -> Answers[K, R]:
        """What the leaders said, in the order of ``partitions``."""
        wanted = list(partitions)
        done: Answers[K, R] = {}
        image = self._cluster.image
        for attempt in range(patience.tries):
            left = [p for p in wanted if p not in done or _moved(done[p])]
            if not left:
                break
            if attempt and any(_is_there(image, place, p) for p in left):
                image = await self._cluster.newer(image.revision, _IMAGE_WAIT_MS)
            elif attempt:
                image = await self._cluster.caught_up(_IMAGE_WAIT_MS)
                if not any(_is_there(image, place, p) for p in left):
                    break
            led, lost = _by_leader(image, place, left)
            done.update(lost)
            asked = (_asked(ask, leader, ids, patience.ask_ms_max) for leader, ids in led)
            for answered in await asyncio.gather(*asked):
                done.update(answered)
        return {p: done[p] for p in wanted}


def _is_there(image: ClusterImage, place: Place[K], partition: K) -> bool:
    try:
        place(image, partition)
    except HeadraceError:
        return False
    return True


def _by_leader(
    image: ClusterImage, place: Place[K], wanted: Iterable[K]
) -> tuple[list[tuple[NodeId, dict[K, PartitionId]]], dict[K, HeadraceError]]:
    """Whom to ask about what, in requests of bounded size; and those that cannot be asked about."""
    led: dict[NodeId, list[tuple[K, PartitionId]]] = {}
    lost: dict[K, HeadraceError] = {}
    for one in wanted:
        try:
            found = image.partitions[place(image, one)]
        except HeadraceError as error:
            lost[one] = error
            continue
        if found.leader == NO_NODE:
            lost[one] = LeaderNotAvailable(
                f"{_called(image, found.id)} has no leader now; `headrace cluster health` says what to start"
            )
        else:
            led.setdefault(found.leader, []).append((one, found.id))
    chunks = [
        (leader, dict(of[at : at + ENTRIES_MAX])) for leader, of in led.items() for at in range(0, len(of), ENTRIES_MAX)
    ]
    return chunks, lost


def _called(image: ClusterImage, partition: PartitionId) -> TopicPartition:
    return TopicPartition(image.topics[partition.topic_id].name, partition.partition)


async def _asked(ask: Ask[K, R], leader: NodeId, ids: Mapping[K, PartitionId], ms_max: float | None) -> Answers[K, R]:
    try:
        async with limit_ms(ms_max):
            return await ask(leader, ids)
    except TimeoutError:
        return dict.fromkeys(ids, NetworkFailed(f"broker {leader} did not answer within {ms_max or 0:g} ms"))
    except HeadraceError as error:
        return dict.fromkeys(ids, error)


def _moved(answer: object) -> bool:
    return isinstance(answer, HeadraceError) and answer.code in MOVED
