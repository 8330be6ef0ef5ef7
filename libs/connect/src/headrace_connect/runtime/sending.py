"""
Sends what chunks of a source became. A record that is too large for its topic is found, and is a bad record: alone, as
one that cannot be converted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from headrace_common.core.errors import RecordTooLarge
from headrace_connect.core.dead_letters import Origin, Refusal, Stage
from headrace_connect.runtime.pipeline import Lost, dead_letters
from headrace_connect.runtime.ports import Outgoing, Sent, SourceWriter

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BadRecords:
    """What becomes of them."""

    connector: str = ""
    task: int = 0
    tolerates: bool = False
    """``errors.tolerance=all``."""
    topic: str | None = None
    """Of dead letters. None: bad records that are tolerated are dropped."""
    headers: bool = True
    """Whether dead letters say why."""
    logs: bool = False


@dataclass(slots=True)
class Outbox:
    """A chunk that is to be sent."""

    split: str
    outgoing: Sequence[Outgoing]
    lost: Sequence[Lost] = ()
    """Of it, to be sent as dead letters."""
    too_large: list[Lost] = field(default_factory=list)
    """Found while it was sent."""

    def count(self, *, letters: bool) -> int:
        """How many records it has; with ``letters`` dead letters too."""
        return sum(one.table.num_rows for one in self.outgoing) + (len(self.lost) if letters else 0)


class Sending:
    """Of one task."""

    def __init__(self, plugin: str, bad: BadRecords) -> None:
        """
        Args:
            plugin: the class of the connector.
        """
        self._plugin = plugin
        self._bad = bad

    async def send(self, writer: SourceWriter, outbox: Outbox) -> list[tuple[Outgoing, Sent]]:
        """
        What was sent of the chunk's records, in their order; dead letters are sent too.

        Raises:
            RecordTooLarge: of a record, and that is not tolerated; says which one and what to do.
            HeadraceError: of the cluster.
        """
        sent: list[tuple[Outgoing, Sent]] = []
        for records in outbox.outgoing:
            sent += await self._fit(writer, outbox, records)
        if self._bad.topic is not None:
            await self._bury(writer, self._bad.topic, [*outbox.lost, *outbox.too_large])
        return sent

    async def _fit(self, writer: SourceWriter, outbox: Outbox, records: Outgoing) -> list[tuple[Outgoing, Sent]]:
        """Halved, until what is too large is alone."""
        try:
            return [(records, await writer.send(records))]
        except RecordTooLarge as error:
            if records.table.num_rows == 1:
                self._refuse(outbox, records, str(error))
                return []
        sent: list[tuple[Outgoing, Sent]] = []
        for half in _halves(records):
            sent += await self._fit(writer, outbox, half)
        return sent

    def _refuse(self, outbox: Outbox, records: Outgoing, message: str) -> None:
        bad = self._bad
        row = "" if records.rows is None else f"row {records.rows[0]} of "
        refusal = Refusal(Stage.WRITE, f"{row}a chunk of split {outbox.split}: {message}", RecordTooLarge.__name__)
        [record] = records.table.to_pylist()
        origin = Origin(bad.connector, bad.task, self._plugin, records.topic)
        lost = Lost(origin, refusal, record.get("key"), record["value"])
        if bad.logs or not bad.tolerates or bad.topic is None:
            _log.warning("%s", lost)
        if not bad.tolerates:
            raise RecordTooLarge(
                f"{bad.connector}: {lost}; raise max.message.bytes of {records.topic}, up to 16 MiB, or "
                "have such records become dead letters: errors.tolerance=all"
            )
        outbox.too_large.append(lost)

    async def _bury(self, writer: SourceWriter, topic: str, lost: Sequence[Lost]) -> None:
        """As dead letters; each has what the topic takes of it."""
        if not lost:
            return
        try:
            await writer.send(dead_letters(topic, lost, headers=self._bad.headers))
        except RecordTooLarge:
            for one in lost:
                await self._bury_one(writer, topic, one)

    async def _bury_one(self, writer: SourceWriter, topic: str, lost: Lost) -> None:
        for shorter in _shorter(lost):
            try:
                await writer.send(dead_letters(topic, [shorter], headers=self._bad.headers))
            except RecordTooLarge:
                continue
            return
        _log.warning("a dead letter is dropped, as %s takes nothing of it: %s", topic, lost)


def _halves(records: Outgoing) -> Iterator[Outgoing]:
    middle = records.table.num_rows // 2
    for part in (slice(0, middle), slice(middle, records.table.num_rows)):
        rows = None if records.rows is None else records.rows[part]
        yield Outgoing(records.topic, records.table.slice(part.start, part.stop - part.start), rows)


def _shorter(lost: Lost) -> Iterator[Lost]:
    """It, without its value, and without its key; the reason says what was left out."""
    yield lost
    size = len(lost.value or b"")
    lost = replace(lost, value=None, refusal=_says(lost.refusal, f"its value of {size} bytes is left out"))
    yield lost
    yield replace(lost, key=None, headers=(), refusal=_says(lost.refusal, "its key too"))


def _says(refusal: Refusal, more: str) -> Refusal:
    return replace(refusal, message=f"{more}; {refusal.message}")
