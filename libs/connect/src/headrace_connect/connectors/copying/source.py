"""Copies partitions of another cluster: each is a split, and its position is the next offset of the source."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, ClassVar, Final

import numpy as np
import orjson

from headrace.errors import HeadraceError, InvalidConfig
from headrace.records import TopicPartition
from headrace_connect.connectors.copying.planning import (
    find_missing,
    find_unknown,
    is_copied,
    is_plain,
    plan,
    target_of,
)
from headrace_connect.connectors.copying.port import (
    Ints,
    Moved,
    Recreated,
    SourceCluster,
    SourceGap,
    SourceRefuses,
    SourceTopic,
    TopicGone,
)
from headrace_connect.connectors.copying.position import Place
from headrace_connect.connectors.copying.settings import SERVERS, CopySettings
from headrace_connect.connectors.copying.syncs import Sync, encode, encode_key, find_runs
from headrace_connect.plugin import BadItem, Chunk, Note, Position, RetriableError, Source, Split, Topics, Written
from headrace_connect.settings import Problem, invalid

_log: Final = logging.getLogger(__name__)
_ID_CHARS_MAX: Final = 249
"""Of a split."""
_SHARED_CHARS: Final = 180
_NONE: Final[Any] = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Copied(Chunk):
    """Records of the source that follow each other."""

    start: int
    """The position before it."""
    offsets: Ints
    """Of its rows, in the source."""


class CopySource(Source[CopySettings]):
    """What is the same whatever the source is."""

    defaults: ClassVar[Mapping[str, str]] = {"key.converter": "bytes", "value.converter": "bytes"}
    copies = True

    def __init__(self, settings: CopySettings) -> None:
        super().__init__(settings)
        self.cluster = self.connect(settings)
        """What is copied."""

    def connect(self, settings: CopySettings) -> SourceCluster:
        """The cluster of the settings; nothing is asked of it yet."""
        raise NotImplementedError

    async def start(self) -> None:
        """See ``Connector``."""
        await self.cluster.open()

    async def stop(self) -> None:
        """See ``Connector``."""
        await self.cluster.close()

    async def check(self) -> Sequence[str]:
        """See ``Connector``."""
        try:
            await self.cluster.open()
            listed = await self.cluster.topics()
            chosen = {name: topic for name, topic in listed.items() if is_copied(name, self.settings)}
            await self.cluster.end_offsets(_partitions(chosen))
        except (InvalidConfig, SourceRefuses) as error:
            return [str(error)]
        except (HeadraceError, RetriableError, OSError) as error:
            key = f"{SERVERS}: "
            return [f"{key}{str(error).removeprefix(key)}; check the address, and the rights of this client"]
        finally:
            await self.cluster.close()
        return list(find_missing(listed, self.settings).values())

    # --- topics ---------------------------------------------------------------------------------------------------

    async def splits(self) -> Sequence[Split]:
        """
        Each partition of each topic that is copied. Makes the target follow before: a split has its partition there.

        Raises:
            InvalidConfig: the settings cannot be followed.
        """
        listed = await self.cluster.topics()
        chosen = {name: topic for name, topic in listed.items() if is_copied(name, self.settings)}
        self._check_missing(listed)
        if self.topics is not None:
            await self._follow(self.topics, chosen)
        return [Split(_split_id(at), {"topic": at.topic, "partition": at.partition}) for at in _partitions(chosen)]

    def _check_missing(self, listed: Mapping[str, SourceTopic]) -> None:
        missing = [said for pattern, said in find_missing(listed, self.settings).items() if is_plain(pattern)]
        if missing and self.settings.topics_missing == "fail":
            raise invalid([Problem("topics", f"{one}; topics.missing=wait goes on without it") for one in missing])
        for one in missing:
            _log.warning("%s", one)

    async def _follow(self, topics: Topics, chosen: Mapping[str, SourceTopic]) -> None:
        """
        Raises:
            InvalidConfig: source and target are the same, or names of copies cannot be told apart.
        """
        if not self.settings.topic_prefix and await topics.cluster_id() == await self.cluster.cluster_id():
            raise invalid([Problem("topic.prefix", "topic.prefix: the source is the target: copies need other names")])
        unknown = find_unknown(chosen, self.settings)
        if unknown and self.settings.sync_topic_configs_enabled:
            _log.warning("settings of topics that are not copied, for the target has none of these: %s", unknown)
        targets = await topics.describe()
        for change in plan(chosen, targets, self.settings):
            _log.info("the target follows: %s", change)
            if change.create:
                configs = {name: value for name, value in change.configs.items() if value is not None}
                await topics.create(change.topic, change.partitions, configs)
                continue
            if change.partitions is not None:
                await topics.grow(change.topic, change.partitions)
            if change.configs:
                await topics.configure(change.topic, change.configs)
        if self.settings.syncs_topic not in targets:
            await topics.create(self.settings.syncs_topic, 1, {"cleanup.policy": "compact"})

    # --- records --------------------------------------------------------------------------------------------------

    async def read(self, split: Split, after: Position | None) -> AsyncIterator[Chunk]:
        """
        See ``Source``.

        Raises:
            InvalidConfig: ``after`` is no position of a partition.
            SourceGap: the topic was deleted.
        """
        at = TopicPartition(split.detail["topic"], split.detail["partition"])
        try:
            async for chunk in self._read(at, _place(after)):
                yield chunk
        except TopicGone:
            what = f"{at}: the topic was deleted at the source"
            if self.settings.topics_missing == "fail":
                raise SourceGap(
                    f"{what}; what was copied stays. Leave it out of topics, or set topics.missing=wait"
                ) from None
            _log.warning("%s; it is copied again when it exists", what)

    async def _read(self, at: TopicPartition, place: Place | None) -> AsyncIterator[Chunk]:
        cluster = self.cluster
        cluster.seek(at, None if place is None else place.offset)
        checked = False
        while True:
            moved: Moved | None = None
            recreated = False
            fetched = None
            try:
                fetched = await cluster.take(at)
            except Moved as error:
                moved = error
            except Recreated:
                recreated = True
            if not checked or recreated or moved is not None:
                # what was taken is of this topic or of an older one, and of that one Recreated is told
                checked = True
                topic_id = await cluster.topic_id(at.topic)
                if place is None:
                    place = Place(topic_id, await self._end_of_target(at))
                elif recreated or place.topic_id != topic_id:
                    place, chunk = await self._begin_anew(at, place, topic_id)
                    yield chunk
                    cluster.seek(at, None)
                    continue
            assert place is not None, "it is known after the first news"
            if moved is not None:
                place, chunk = self._skip(at, place, moved)
                yield chunk
            elif fetched is not None:
                start = place.offset
                if len(fetched.offsets) or fetched.next_offset != start:
                    place = place.move(fetched.next_offset)
                yield Copied(
                    fetched.values,
                    place.to_json(),
                    topic=target_of(at.topic, self.settings),
                    keys=fetched.keys,
                    timestamps_ms=fetched.timestamps_ms,
                    headers=fetched.headers,
                    partition=at.partition,
                    drained=fetched.drained,
                    start=start,
                    offsets=fetched.offsets,
                )

    async def _end_of_target(self, at: TopicPartition) -> int:
        """Nobody else copies it: who did has been fenced before anything is read."""
        if self.topics is None:
            return 0
        return await self.topics.end_offset(target_of(at.topic, self.settings), at.partition)

    async def _begin_anew(self, at: TopicPartition, place: Place, topic_id: str) -> tuple[Place, Chunk]:
        reason = (
            f"{at}: the topic was deleted at the source and made again; what was behind offset {place.offset} of the "
            "old one was not copied"
        )
        new = Place(topic_id, await self._end_of_target(at), 0, place.number + 1)
        return new, self._gap(new, reason, at, place.offset, None)

    def _skip(self, at: TopicPartition, place: Place, moved: Moved) -> tuple[Place, Chunk]:
        new = place.move(moved.offset)
        start = min(place.offset, moved.offset)
        return new, self._gap(new, f"{moved}; going on at {moved.offset}", at, start, moved.offset)

    def _gap(self, place: Place, reason: str, at: TopicPartition, start: int, end: int | None) -> Chunk:
        """Tells that records are missing: with ``errors.tolerance=none`` the task fails so."""
        raw = orjson.dumps({"topic": at.topic, "partition": at.partition, "from": start, "to": end})
        said = BadItem(raw, f"{reason}. With errors.tolerance=all this becomes a dead letter, and copying goes on")
        start = start if end is not None else 0
        return Copied(
            [], place.to_json(), topic=target_of(at.topic, self.settings), bad=(said,), start=start, offsets=_NONE
        )

    # --- which record went where ----------------------------------------------------------------------------------

    async def note(self, written: Sequence[Written]) -> Sequence[Note]:
        """See ``Source``: one sync of each partition."""
        parts: dict[tuple[TopicPartition, str], list[Written]] = {}
        for one in written:
            detail = one.split.detail
            at = TopicPartition(detail["topic"], detail["partition"])
            parts.setdefault((at, Place.from_json(one.chunk.position).topic_id), []).append(one)
        return [self._sync(at, own) for (at, _), own in parts.items()]

    def _sync(self, at: TopicPartition, written: Sequence[Written]) -> Note:
        chunks = [one.chunk for one in written]
        place = Place.from_json(chunks[-1].position)
        target = target_of(at.topic, self.settings)
        sources, targets = [_NONE], [_NONE]
        elsewhere = False
        for one in written:
            for where in one.places:
                elsewhere |= where.topic != target
                assert isinstance(one.chunk, Copied), "only these have records"
                sources.append(one.chunk.offsets[where.rows])
                targets.append(where.offsets)
        runs = [] if elsewhere else find_runs(np.concatenate(sources), np.concatenate(targets))
        first = chunks[0]
        assert isinstance(first, Copied), "there are no others"
        copies = "" if elsewhere else target
        sync = Sync(place.number, place.topic_id, copies, place.base, first.start, place.offset, runs)
        settings = self.settings
        return Note(settings.syncs_topic, encode_key(at, place.number, settings.offset_syncs_max), encode(sync))


def _place(after: Position | None) -> Place | None:
    if after is None:
        return None
    try:
        return Place.from_json(after)
    except ValueError as wrong:
        raise invalid([Problem("", str(wrong))]) from wrong


def _partitions(topics: Mapping[str, SourceTopic]) -> list[TopicPartition]:
    return [
        TopicPartition(name, number) for name, topic in sorted(topics.items()) for number in range(topic.partitions)
    ]


def _split_id(at: TopicPartition) -> str:
    """Its name, where that is not too long."""
    name = str(at)
    if len(name) <= _ID_CHARS_MAX:
        return name
    return f"{at.topic[:_SHARED_CHARS]}~{sha256(at.topic.encode()).hexdigest()[:32]}-{at.partition}"
