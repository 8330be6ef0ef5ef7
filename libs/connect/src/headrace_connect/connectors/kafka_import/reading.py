"""Records of partitions of Kafka, by one consumer. Blocks: its caller has a thread for it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import confluent_kafka as kafka

from headrace.records import TopicPartition
from headrace_common.runtime.clock import Clock
from headrace_connect.connectors.copying.port import Moved, Recreated, TopicGone
from headrace_connect.connectors.kafka_import.asking import QUIET, Asking
from headrace_connect.connectors.kafka_import.faults import OUTSIDE, UNKNOWN, creation
from headrace_connect.connectors.kafka_import.settings import ImportSettings

_POLL_S: Final = 0.1
"""How long news is waited for."""
_MESSAGES: Final = 20_000
"""Of one call, at most."""
_LOOK_MS: Final = 5_000.0
"""How often it is asked whether topics are still the same ones when nothing comes of them."""


@dataclass(frozen=True, slots=True)
class Piece:
    """News of a partition: one of these."""

    at: TopicPartition
    messages: tuple[Any, ...] = ()
    """Records that follow each other."""
    end: int | None = None
    """There is nothing behind this position for now."""
    failed: Exception | None = None
    """The partition is not read any more until it is sought."""


class Reading:
    """
    The consumer, which has no group and keeps no positions.

    Records are given only after the topic was found to be the one that was sought: of one that was made again they
    would look like its continuation.
    """

    def __init__(self, settings: ImportSettings, asking: Asking, clock: Clock) -> None:
        """
        Raises:
            InvalidConfig: a property of the client is wrong.
        """
        self._asking = asking
        self._clock = clock
        self._limit_s = settings.timeout_ms / 1_000
        self._next: dict[TopicPartition, int] = {}
        """Of partitions that are read: where the consumer is."""
        self._ended: dict[TopicPartition, int] = {}
        """The last end that was given of them: the client says it again."""
        self._ids: dict[str, str] = {}
        """Of their topics."""
        self._looked_ms = clock.monotonic_ms()
        with creation(settings):
            self._consumer: Any = kafka.Consumer({**settings.of_consumer(), "error_cb": asking.hear}, logger=QUIET)

    def close(self) -> None:
        """Let go."""
        self._consumer.close()

    def read(self, starts: Mapping[TopicPartition, int | None]) -> list[Piece]:
        """
        Seek, and give what is there; waits for a moment.

        Args:
            starts: where partitions are to be read; None: at the first record that there is.

        Raises:
            RetriableError: and whatever else it is, no partition is read any more until it is sought.
        """
        try:
            missing = self._begin(starts)
            known = dict(self._ids)
            return [*missing, *self._verify(self._pieces(self._consume()), known)]
        except BaseException:
            self._stop(list(self._next))
            raise

    # --- partitions ---------------------------------------------------------------------------------------------------

    def _begin(self, starts: Mapping[TopicPartition, int | None]) -> list[Piece]:
        self._stop(starts.keys() & self._next.keys())
        described = self._asking.describe({at.topic for at in starts})
        gone: list[Piece] = []
        for at, offset in starts.items():
            topic_id, partitions = described.get(at.topic, ("", 0))
            if at.partition >= partitions:
                gone.append(Piece(at, failed=TopicGone(at.topic)))
                continue
            self._ids.setdefault(at.topic, topic_id)
            where = kafka.OFFSET_BEGINNING if offset is None else offset
            self._consumer.incremental_assign([kafka.TopicPartition(*at, where)])
            self._next[at] = offset or 0
        return gone

    def _stop(self, partitions: Collection[TopicPartition]) -> None:
        if partitions:
            self._consumer.incremental_unassign([kafka.TopicPartition(*at) for at in partitions])
        for at in partitions:
            del self._next[at]
            self._ended.pop(at, None)
        topics = {at.topic for at in self._next}
        self._ids = {topic: known for topic, known in self._ids.items() if topic in topics}

    def _consume(self) -> list[Any]:
        first = self._consumer.poll(_POLL_S)
        return [] if first is None else [first, *self._consumer.consume(_MESSAGES, 0)]

    # --- what came ----------------------------------------------------------------------------------------------------

    def _pieces(self, messages: Iterable[Any]) -> list[Piece]:
        pieces: list[Piece | None] = []
        for (topic, partition, good), own in groupby(messages, _run_of):
            if topic is None:
                continue  # of a broker: where it matters, partitions say so too
            at = TopicPartition(topic, partition)
            run = tuple(own)
            pieces += [self._records(at, run)] if good else [self._said(at, one) for one in run]
        return [piece for piece in pieces if piece is not None]

    def _records(self, at: TopicPartition, messages: tuple[Any, ...]) -> Piece | None:
        if at not in self._next:
            return None
        self._next[at] = behind = messages[-1].offset() + 1
        _, end = self._consumer.get_watermark_offsets(kafka.TopicPartition(*at), cached=True)
        if behind != end:
            return Piece(at, messages)
        self._ended[at] = end
        return Piece(at, messages, end)

    def _said(self, at: TopicPartition, message: Any) -> Piece | None:
        """What the client says of a partition in the place of records."""
        error = message.error()
        if at not in self._next:
            return None
        if error.code() == kafka.KafkaError._PARTITION_EOF:
            return self._end(at, message.offset())
        if error.code() in UNKNOWN:
            self._looked_ms = -_LOOK_MS  # it may know less than others
            return None
        failed = self._moved(at) if error.code() in OUTSIDE else self._asking.fault(error, at.topic)
        self._stop([at])
        return Piece(at, failed=failed)

    def _end(self, at: TopicPartition, position: int) -> Piece | None:
        self._next[at] = position
        if self._ended.get(at) == position:
            return None
        self._ended[at] = position
        return Piece(at, end=position)

    def _moved(self, at: TopicPartition) -> Exception:
        position = self._next[at]
        with self._asking.asking(at.topic):
            low, high = self._consumer.get_watermark_offsets(kafka.TopicPartition(*at), timeout=self._limit_s)
        missing = f"; up to {low - position} records are lost" if position < low else ""
        held = f"the log has {low} to {high - 1}" if low < high else f"the log is empty and ends at {high}"
        reason = f"{at}: offset {position} does not exist, {held}{missing}"
        return Moved(reason, low if position < low else min(position, high))

    def _verify(self, pieces: list[Piece], known: Mapping[str, str]) -> list[Piece]:
        """Without what came of topics that are others by now; for each of their partitions a failure."""
        now_ms = self._clock.monotonic_ms()
        topics = {piece.at.topic for piece in pieces}
        if now_ms - self._looked_ms >= _LOOK_MS or self._asking.heard is not None:
            topics |= known.keys()
            self._looked_ms = now_ms
        described = self._asking.describe(topics)
        changed = {topic for topic in topics if described.get(topic, ("", 0))[0] != known[topic]}
        partitions = {at for at in self._next if at.topic in changed}
        self._stop(partitions)
        partitions |= {piece.at for piece in pieces if piece.at.topic in changed}
        failures = [
            Piece(at, failed=Recreated(at.topic) if at.topic in described else TopicGone(at.topic))
            for at in sorted(partitions)
        ]
        return [piece for piece in pieces if piece.at.topic not in changed] + failures


def _run_of(message: Any) -> tuple[str | None, int, bool]:
    return message.topic(), message.partition(), message.error() is None
