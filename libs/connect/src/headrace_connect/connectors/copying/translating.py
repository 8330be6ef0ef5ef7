"""
Positions of the source as positions of the target: exact, or refused. Pure.

A position names the next record to read. Its translation is the offset of the copy of the first record at or behind it;
where none is copied yet, the offset behind the last copy: what comes next lands there or behind.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.errors import Busy, Rejected
from headrace_connect.connectors.copying.syncs import Sync


class NotCopiedYet(Busy):
    """The connector has not copied up to the position; it will."""


class NoTranslation(Rejected):
    """What is known does not reach back to the position, or nothing was copied of the partition."""


class History:
    """What is known of one partition of the source, of the topic that its newest sync is about."""

    def __init__(self, syncs: Iterable[Sync]) -> None:
        """
        Args:
            syncs: in any order; those that a newer one with the same key has replaced may be among them.
        """
        by_number = sorted(syncs, key=lambda sync: sync.number, reverse=True)
        chain: list[Sync] = []
        for sync in by_number:
            if chain and (sync.topic_id != chain[-1].topic_id or sync.end < chain[-1].start):
                break  # another topic, or syncs between the two are gone
            chain.append(sync)
        self._chain = chain[::-1]

    @property
    def copied(self) -> int:
        """Everything of the source below this offset was copied; 0: nothing is known."""
        return self._chain[-1].end if self._chain else 0

    @property
    def topic_id(self) -> str | None:
        """Of the source's topic; None: nothing is known."""
        return self._chain[-1].topic_id if self._chain else None

    @property
    def target(self) -> str | None:
        """The topic of the copies; None: nothing is known."""
        return self._chain[-1].target if self._chain else None

    def translate(self, position: int) -> int:
        """
        Raises:
            NotCopiedYet: ask again later.
            NoTranslation: asking again does not help.
        """
        chain = self._chain
        if not chain or position > self.copied:
            raise NotCopiedYet(f"offset {position} was not copied yet; the connector is at {self.copied}")
        if position < chain[0].start:
            raise NoTranslation(
                f"offset {position} was copied before what is known, which begins at {chain[0].start}: let the group "
                "read on at the source, and set offset.syncs.max higher"
            )
        # a source that lost its end is read again from there: the newest sync that begins before counts
        at = max(number for number, sync in enumerate(chain) if sync.start <= position)
        if not all(sync.target for sync in chain):
            raise NoTranslation(
                "a transform changes the topic of the copies; topic.prefix names them so that it is known"
            )
        for sync in chain[at:]:
            for run in sync.runs:
                if run.source + run.count > position:
                    return run.target + max(0, position - run.source)
        ended = [run for sync in chain for run in sync.runs]
        if ended:
            return ended[-1].target + ended[-1].count
        if chain[0].start > 0:
            raise NoTranslation(
                f"offset {position} is at the end, and where the last copy is was forgotten: wait until something was "
                "written to this partition of the source"
            )
        return chain[0].base
