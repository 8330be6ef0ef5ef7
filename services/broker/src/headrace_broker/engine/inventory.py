"""
Everything on this broker's disk, whatever the image says: for a controller whose metadata was restored from a backup,
and for an operator who adopts a stray topic. Answered before the broker is unfenced, and before it has any image.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from headrace_broker.core.topic_notes import TopicNote
from headrace_broker.engine.replicas import Replica, Replicas, Standing
from headrace_broker.engine.topic_noter import TopicNoter
from headrace_common.core.errors import Rejected
from headrace_common.core.ids import Offset, PartitionId, TopicId
from headrace_common.runtime.clock import give_way

TOPICS_PER_REQUEST_MAX: Final = 10_000
PAGE_ENTRIES: Final = 500
"""Topics and logs in one answer: what the event loop does at a time."""


@dataclass(frozen=True, slots=True)
class HeldLog:
    """One log, as it was at one moment."""

    id: PartitionId
    last_epoch: int
    """Of the record before ``written_end``; -1: none is known."""
    written_end: Offset
    damaged: bool
    known_epoch: int
    """The highest that the log knows; -1: none."""
    fencing_token: int | None


@dataclass(slots=True)
class Page:
    """What one answer names."""

    topics: list[TopicNote] = field(default_factory=list)
    logs: list[HeldLog] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.topics) + len(self.logs)


def find_last_written(replica: Replica) -> tuple[int, Offset]:
    """Epoch of the last record that is down by the flush policy, and the offset after it: what elections compare."""
    core = replica.core
    return core.epochs.epoch_at(Offset(core.written_end - 1)), core.written_end


async def list_pages(replicas: Replicas, topic_noter: TopicNoter, topics: Sequence[TopicId]) -> AsyncIterator[Page]:
    """
    The logs of these topics, or of all, strays and damaged ones included, and what is noted of the topics.

    Each log is told as it is when its turn comes; others have theirs between two pages. A log that is being deleted
    is left out, and so may be one that is made meanwhile: it is empty.

    Raises:
        Rejected: too many topics at once.
    """
    if len(topics) > TOPICS_PER_REQUEST_MAX:
        raise Rejected(
            f"the request names {len(topics)} topics; {TOPICS_PER_REQUEST_MAX} is the most, and none means all"
        )
    page, asked = Page(), frozenset(topics)
    for one in _list_held(
        replicas, topic_noter, [one for one in await topic_noter.topics() if one in asked or not asked]
    ):
        if isinstance(one, TopicNote):
            page.topics.append(one)
        else:
            page.logs.append(one)
        if len(page) == PAGE_ENTRIES:
            yield page
            page = Page()
            await give_way()
    if len(page):
        yield page


def _list_held(replicas: Replicas, topic_noter: TopicNoter, topics: Sequence[TopicId]) -> Iterator[TopicNote | HeldLog]:
    """Topic by topic; what is deleted between two steps is left out."""
    for topic_id in topics:
        noted = False
        for replica in replicas.of_topic(topic_id):
            if replica.standing is Standing.DELETING or replicas.get(replica.id) is not replica:
                continue
            note = None if noted else topic_noter.note(topic_id)
            noted = True
            if note is not None:
                yield note
            yield _log(replica)


def _log(replica: Replica) -> HeldLog:
    core = replica.core
    last_epoch, end = find_last_written(replica)
    token = core.fences.token if core.fences.token >= 0 else None
    return HeldLog(replica.id, last_epoch, end, replica.damage is not None, core.epochs.latest, token)
