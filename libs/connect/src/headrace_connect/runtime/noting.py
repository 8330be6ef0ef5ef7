"""Tells a source where the records of a transaction are, and sends what it says of that, in the same transaction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headrace_connect.plugin import Chunk, Note, Place, Source, Split, Written
from headrace_connect.runtime.calling import Calls
from headrace_connect.runtime.ports import Outgoing, Sent, SourceWriter


@dataclass(slots=True)
class _Sending:
    split: Split
    chunk: Chunk
    sent: list[tuple[Outgoing, Sent]] = field(default_factory=list)


class Notes:
    """Of one task, whose source overrides ``note``."""

    def __init__(self, source: Source[Any], calls: Calls) -> None:
        self._source = source
        self._calls = calls
        self._taken: _Sending | None = None
        self._sending: list[_Sending] = []

    def take(self, split: Split, chunk: Chunk) -> None:
        """This chunk is sent next, at once or in parts, unless nothing has come of it."""
        self._taken = _Sending(split, chunk)

    def begin(self) -> None:
        """Nothing is sent yet."""
        self._sending = []

    def sent(self, sent: Sequence[tuple[Outgoing, Sent]]) -> None:
        """The chunk that was taken, or a part of it, is on its way."""
        assert self._taken is not None, "a chunk is taken before it is sent"
        self._taken.sent += [(records, one) for records, one in sent if records.rows is not None]
        if not self._sending or self._sending[-1] is not self._taken:
            self._sending.append(self._taken)

    async def send(self, writer: SourceWriter) -> None:
        """
        Wait until all is written; send the notes.

        Raises:
            HeadraceError: a record was not delivered.
        """
        written = [Written(one.split, one.chunk, [await _place(*pair) for pair in one.sent]) for one in self._sending]
        notes: Sequence[Note] = await self._calls.call(self._source.note, written)
        by_topic = defaultdict[str, list[Note]](list)
        for note in notes:
            by_topic[note.topic].append(note)
        for topic, own in by_topic.items():
            keys = pa.array([note.key for note in own], pa.binary())
            values = pa.array([note.value for note in own], pa.binary())
            await writer.send(Outgoing(topic, pa.table({"key": keys, "value": values})))


async def _place(records: Outgoing, sent: Sent) -> Place:
    assert records.rows is not None, "they are of a chunk"
    partitions, offsets = await sent.places()
    return Place(records.topic, records.rows, partitions, offsets)
