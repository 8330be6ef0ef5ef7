"""
What a broker notes of the topics whose logs it has, and when: pure.

The notes are what is left of a topic's name and settings when the metadata is lost: a restore from a backup, and an
operator who adopts a stray topic, ask every broker for them. ``engine/topic_noter.py`` calls this with each image, and
before the first log of a topic is made and before changed settings are acted on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from headrace_common.core.ids import TopicId
from headrace_common.core.image import ClusterImage, Topic


@dataclass(frozen=True, slots=True)
class TopicNote:
    """A topic as an image had it."""

    topic: Topic
    incarnation: bytes
    """Of the metadata; revisions of different ones cannot be compared."""
    revision: int
    """Of the image from which the note was made. It holds until there is another, or the image drops the topic."""


@dataclass(frozen=True, slots=True)
class NoteChanges:
    """What is to be written at once; no topic is in both."""

    noted: tuple[TopicNote, ...] = ()
    dropped: tuple[TopicId, ...] = ()


def find_notes_due(
    image: ClusterImage, held: Collection[TopicId], notes: Mapping[TopicId, TopicNote]
) -> NoteChanges | None:
    """
    How ``notes`` must change when the broker takes ``image`` in and has logs of the topics ``held``; None: not at all.

    A topic that is held and not in the image is stray: its note stays as it is. Metadata of another incarnation is
    noted anew, changed or not, so that the notes of all brokers can be compared after the next restore; but see
    ``is_newer``.
    """
    noted = tuple(
        TopicNote(topic, image.incarnation, image.revision)
        for topic_id in held
        if (topic := image.topics.get(topic_id)) is not None and not _stands(notes.get(topic_id), topic, image)
    )
    dropped = tuple(topic_id for topic_id in notes if topic_id not in held)
    return NoteChanges(noted, dropped) if noted or dropped else None


def is_newer(note: TopicNote | None, image: ClusterImage) -> bool:
    """
    Whether a note may know what the image does not know yet.

    So it is while the metadata is being restored from a backup: the image has another incarnation, says what the backup
    says, and nobody leads any partition of the topic before all notes were read.
    """
    if note is None:
        return False
    if note.incarnation == image.incarnation:
        return note.revision > image.revision
    topic = image.topics.get(note.topic.topic_id)
    return topic is None or all(partition.offline for partition in image.partitions_of(topic))


def _stands(note: TopicNote | None, topic: Topic, image: ClusterImage) -> bool:
    if note is not None and note.incarnation == image.incarnation and (note.topic is topic or note.topic == topic):
        return True
    return is_newer(note, image)
