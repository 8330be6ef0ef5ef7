"""Moves a group to the copies: what it has committed at the source, translated, becomes its positions at the target."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headrace import aio
from headrace.errors import Conflict, NotFound, Rejected, UnknownTopicOrPartition, WaitTimedOut
from headrace.group_types import ResetPlan
from headrace.records import TopicPartition
from headrace_common.runtime.clock import Clock
from headrace_connect.connectors.copying.planning import is_copied
from headrace_connect.connectors.copying.port import SourceCluster, SourceTopic
from headrace_connect.connectors.copying.settings import CopySettings
from headrace_connect.connectors.copying.syncs import Sync, decode, decode_key
from headrace_connect.connectors.copying.translating import History, NotCopiedYet

_LOOK_MS: Final = 500.0
_POLL_MS: Final = 500.0
_ROWS: Final = 10_000

Histories = Callable[[Collection[TopicPartition]], Awaitable[Mapping[TopicPartition, History]]]
"""What is known of partitions of the source; those of which nothing is known may be left out."""


@dataclass(frozen=True, slots=True)
class Move:
    """A position of a group, and its translation."""

    source: TopicPartition
    position: int
    target: TopicPartition
    offset: int


async def translate_group(
    cluster: SourceCluster, histories: Histories, group: str, settings: CopySettings, clock: Clock, wait_ms: float
) -> list[Move]:
    """
    Where the group goes on at the target. It must have stopped at the source.

    Args:
        wait_ms: for the connector to copy what the group has read.

    Raises:
        Conflict: it has members.
        NotFound: it has committed nothing.
        Rejected: it reads a topic that is not copied, or what is known does not reach back so far.
        WaitTimedOut: the connector is not there yet.
    """
    members = await cluster.group_members(group)
    if members:
        raise Conflict(f"group {group} has {members} members at the source: stop them, so that its positions stay")
    positions = await cluster.group_positions(group)
    if not positions:
        raise NotFound(f"group {group} has committed nothing at the source")
    others = sorted({at.topic for at in positions if not is_copied(at.topic, settings)})
    if others:
        raise Rejected(f"group {group} reads {', '.join(others)}, which this connector does not copy")
    until_ms = clock.monotonic_ms() + wait_ms
    while True:
        known, topics = await histories(positions.keys()), await cluster.topics()
        try:
            return [
                _move(at, position, known.get(at, History(())), topics.get(at.topic))
                for at, position in sorted(positions.items())
            ]
        except NotCopiedYet as error:
            if clock.monotonic_ms() >= until_ms:
                raise WaitTimedOut(f"{error}. Does the connector run?") from error
        await clock.sleep_ms(_LOOK_MS)


def _move(at: TopicPartition, position: int, history: History, topic: SourceTopic | None) -> Move:
    try:
        if topic is not None and history.topic_id not in (None, topic.id):
            raise NotCopiedYet("the topic was made again at the source, and nothing of the new one was copied yet")
        offset = history.translate(position)
    except (NotCopiedYet, Rejected) as error:
        raise type(error)(f"{at}: {error}") from error
    assert history.target is not None, "something is known"
    return Move(at, position, TopicPartition(history.target, at.partition), offset)


async def carry_out(
    cluster: SourceCluster, admin: aio.AdminClient, group: str, moves: Sequence[Move], *, execute: bool
) -> ResetPlan:
    """
    Set the positions at the target; without ``execute`` nothing is changed.

    Raises:
        Conflict: the group has gone on at the source meanwhile, or a position lies outside of its log: nothing was
            changed.
        NonEmptyGroup: it has members at the target.
    """
    offsets: dict[tuple[str, int], int] = {move.target: move.offset for move in moves}
    planned = await admin.reset_offsets(group, to_offset=offsets, execute=False)
    beside = [f"{one.partition}: {one.note or one.error}" for one in planned.partitions if one.note or one.error]
    if beside:
        raise Conflict(f"the target does not hold the positions: {'; '.join(beside)}")
    if not execute:
        return planned
    if await cluster.group_members(group) or await cluster.group_positions(group) != {
        move.source: move.position for move in moves
    }:
        raise Conflict(f"group {group} has gone on at the source: stop its members, and ask again")
    return await admin.reset_offsets(group, to_offset=offsets, execute=True)


async def read_histories(
    servers: str | Sequence[str] | None, topic: str, wanted: Collection[TopicPartition], limit_ms: float, clock: Clock
) -> dict[TopicPartition, History]:
    """
    What the target knows of partitions of the source, as of its log's end now.

    Raises:
        WaitTimedOut: the topic could not be read to its end.
    """
    found = defaultdict[TopicPartition, list[Sync]](list)
    async with aio.Consumer(bootstrap_servers=servers, isolation_level="read_committed") as consumer:
        try:
            partitions = [TopicPartition(topic, number) for number in sorted(await consumer.partitions_for(topic))]
        except UnknownTopicOrPartition:
            return {}
        await consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        left, until_ms = set(partitions), clock.monotonic_ms() + limit_ms
        while left:
            for table in await consumer.poll_batches(_POLL_MS, _ROWS):
                _take(table.table, wanted, found)
                if table.lag == 0:
                    left.discard(TopicPartition(table.topic, table.partition))
            if left and clock.monotonic_ms() >= until_ms:
                raise WaitTimedOut(f"{topic} could not be read to its end within {limit_ms:.0f} ms")
    return {at: History(syncs) for at, syncs in found.items()}


def _take(table: Any, wanted: Collection[TopicPartition], found: dict[TopicPartition, list[Sync]]) -> None:
    for key, value in zip(table.column("key").to_pylist(), table.column("value").to_pylist(), strict=True):
        if key is None or value is None:
            continue
        at = decode_key(key)
        sync = decode(value) if at in wanted else None
        if sync is not None:
            found[at].append(sync)
