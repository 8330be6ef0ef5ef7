"""
Keeps the notes of topics as they must be: on disk before the logs and settings that they speak of.

The image applier calls it before it posts what an image changes, and after logs were deleted.
"""

from __future__ import annotations

import asyncio

from headrace_broker.core.topic_notes import TopicNote, find_notes_due, is_newer
from headrace_broker.engine.replicas import Replicas
from headrace_broker.engine.storage_loop import StorageLoop
from headrace_broker.ports import TopicNotes
from headrace_common.core.errors import StorageFailed
from headrace_common.core.ids import TopicId


class TopicNoter:
    """One for the broker; two tasks call it, so what is to be written is decided when it is one's turn."""

    def __init__(self, replicas: Replicas, notes: TopicNotes, loop: StorageLoop) -> None:
        self._replicas = replicas
        self._notes = notes
        self._loop = loop
        self._turn = asyncio.Lock()
        self.waiting = False
        """Whether a note stands that another image will change: look again with each."""

    async def bring_up(self) -> None:
        """
        Note what the present image says of the topics that have logs here, durably; drop notes of those that have none.

        Raises:
            StorageFailed: the disk refused; as after a write that failed nothing is acknowledged any more.
        """
        async with self._turn:
            image = self._replicas.image
            changes = find_notes_due(image, self._replicas.topic_ids, self._notes.present)
            if changes is not None:
                try:
                    await self._notes.keep(changes)
                except StorageFailed as error:
                    self._loop.stop(error)
                    raise
            self.waiting = any(
                topic_id in image.topics and is_newer(note, image) for topic_id, note in self._notes.present.items()
            )

    async def topics(self) -> tuple[TopicId, ...]:
        """The topics that have logs here, once all is noted of them that is to be noted before their logs are made."""
        async with self._turn:
            return tuple(self._replicas.topic_ids)

    def may_know_more(self, topic_id: TopicId) -> bool:
        """Whether the note of a topic may be newer than the present image, which then is no order to delete a log."""
        return is_newer(self._notes.present.get(topic_id), self._replicas.image)

    def note(self, topic_id: TopicId) -> TopicNote | None:
        """What is known of a topic; None: nothing, or no log of it is here."""
        return self._notes.present.get(topic_id)
