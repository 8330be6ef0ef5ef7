"""Topic notes in memory, under the contract of the file: for tests and brokers without a disk."""

from __future__ import annotations

from collections.abc import Mapping

from headrace_broker.core.topic_notes import NoteChanges, TopicNote
from headrace_common.core.errors import StorageFailed
from headrace_common.core.ids import TopicId
from headrace_common.runtime.clock import give_way


class MemoryTopicNotes:
    """``TopicNotes`` that live as long as the object; ``reopened`` is what a next process finds."""

    def __init__(self, notes: Mapping[TopicId, TopicNote] | None = None) -> None:
        self._notes = dict(notes or {})
        self.failure: StorageFailed | None = None
        """Set by a test: why nothing can be kept."""
        self.kept: list[NoteChanges] = []
        """What was asked for, in order."""

    @property
    def present(self) -> Mapping[TopicId, TopicNote]:
        return self._notes

    async def keep(self, changes: NoteChanges) -> None:
        await give_way()
        if self.failure is not None:
            raise self.failure
        self.kept.append(changes)
        noted = {note.topic.topic_id: note for note in changes.noted}
        self._notes = {id: note for id, note in (self._notes | noted).items() if id not in changes.dropped}

    def reopen(self) -> MemoryTopicNotes:
        """As the next process finds them."""
        return MemoryTopicNotes(self._notes)
