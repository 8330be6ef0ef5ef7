"""
The notes of topics, in the file ``topic-notes`` of the data directory.

``main`` opens it before the engine. One line per change, each with its checksum, appended and synced; written anew when
more than half of it is out of date, so that thousands of topics made one by one cost what they are. What cannot be read
is put into ``topic-notes.damaged`` and made again from the next image: these notes never keep a broker from starting.
Versions that know no notes leave the file alone.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from headrace_broker.adapters.data_directory import write_durably
from headrace_broker.core.topic_notes import NoteChanges, TopicNote
from headrace_common.core.batch.checksum import crc32c
from headrace_common.core.errors import StorageFailed
from headrace_common.core.ids import TopicId
from headrace_common.core.image import Topic
from headrace_common.runtime.threads import run_in_thread

FILE: Final = "topic-notes"
DAMAGED: Final = "topic-notes.damaged"
FORMAT: Final = 1
SLACK_BYTES: Final = 64 << 10
"""The file is written anew when it has more than twice what it says, and this."""
_ID_BYTES: Final = 16

_log = logging.getLogger(__name__)


class Unreadable(ValueError):
    """A line is not what was written; the text says how."""


@dataclass(slots=True)
class Found:
    """What the bytes of a file say."""

    notes: dict[TopicId, TopicNote] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)
    """One sentence for each line that is not what was written."""
    torn: bool = False
    """The last line is not whole: a crash came between its write and its sync, nothing was acted on."""


class TopicNotesFile:
    """``TopicNotes`` in a data directory. One process, one call of ``keep`` at a time."""

    def __init__(self, directory: Path) -> None:
        """Read the file; blocks for as long as that takes. What is damaged is set aside, nothing is raised."""
        self._path = directory / FILE
        self._aside = directory / DAMAGED
        self._anew = False
        """Whether the file is to be written anew before anything is appended."""
        self._notes: dict[TopicId, TopicNote] = {}
        self._size = 0
        try:
            raw = self._path.read_bytes()
        except FileNotFoundError:
            self._anew = True
        except OSError as error:
            self._set_aside(error)
        else:
            self._take(raw)
        self._sizes = {topic_id: len(_encode_noted(note)) for topic_id, note in self._notes.items()}
        self._live = sum(self._sizes.values())

    @property
    def present(self) -> Mapping[TopicId, TopicNote]:
        return self._notes

    async def keep(self, changes: NoteChanges) -> None:
        notes = dict(self._notes)
        for note in changes.noted:
            notes[note.topic.topic_id] = note
        for topic_id in changes.dropped:
            notes.pop(topic_id, None)
        try:
            sizes = await run_in_thread(self._write, changes, notes)
        except OSError as error:
            self._anew = True  # part of a line may be there
            raise StorageFailed(f"{self._path} cannot be written: {error}") from error
        self._notes = notes
        gone = [*(note.topic.topic_id for note in changes.noted), *changes.dropped]
        self._live += sum(sizes.values()) - sum(self._sizes.pop(topic_id, 0) for topic_id in gone)
        self._sizes |= sizes

    def _write(self, changes: NoteChanges, notes: Mapping[TopicId, TopicNote]) -> dict[TopicId, int]:
        """In a thread. The sizes of the lines that say what was noted."""
        lines = {note.topic.topic_id: _encode_noted(note) for note in changes.noted}
        added = b"".join([*lines.values(), *map(_encode_dropped, changes.dropped)])
        if self._anew or self._size + len(added) > 2 * self._live + SLACK_BYTES:
            whole = encode(notes.values())
            write_durably(self._path, whole)
            self._size, self._anew = len(whole), False
        else:
            with open(self._path, "ab") as file:
                file.write(added)
                file.flush()
                os.fsync(file.fileno())
            self._size += len(added)
        return {topic_id: len(line) for topic_id, line in lines.items()}

    def _set_aside(self, error: OSError) -> None:
        _log.warning("topic notes cannot be read: %s; set aside in %s and created again", error, self._aside)
        self._anew = True
        try:
            os.replace(self._path, self._aside)
        except OSError as second:
            _log.warning("topic notes could not be set aside in %s: %s", self._aside, second)

    def _take(self, raw: bytes) -> None:
        found = decode(raw)
        self._notes, self._size = found.notes, len(raw)
        self._anew = found.torn or bool(found.unreadable)
        if not found.unreadable:
            return
        _log.warning(
            "topic notes are damaged (%s): set aside in %s; what is missing is noted again from the next metadata",
            found.unreadable[0],
            self._aside,
            extra={"lines": len(found.unreadable), "topics": len(found.notes)},
        )
        try:
            write_durably(self._aside, raw)
        except OSError as error:
            _log.warning("damaged topic notes could not be set aside in %s: %s", self._aside, error)


def encode(notes: Iterable[TopicNote]) -> bytes:
    return b"".join([_line({"format": FORMAT}), *map(_encode_noted, notes)])


def decode(raw: bytes) -> Found:
    """What a file says, line by line, as far as it can be read."""
    found = Found()
    *lines, rest = raw.split(b"\n")
    for number, line in enumerate([*lines, rest] if rest else lines, 1):
        try:
            _apply(found, _fields(line), number)
        except Unreadable as error:
            if number > len(lines) > 0:
                break
            found.unreadable.append(f"line {number}: {error}")
    found.torn = bool(rest)
    if not raw:
        found.unreadable.append("it is empty")
    return found


def _apply(found: Found, fields: dict[str, Any], number: int) -> None:
    if "format" in fields:
        if number != 1 or fields["format"] != FORMAT:
            raise Unreadable(f"format {fields['format']!r} there; this broker knows {FORMAT}, in line 1")
    elif "dropped" in fields:
        found.notes.pop(_id(fields["dropped"]), None)
    else:
        note = _note(fields)
        found.notes[note.topic.topic_id] = note


def _fields(line: bytes) -> dict[str, Any]:
    check, _, text = line.partition(b" ")
    if check != b"%08x" % crc32c(text):
        raise Unreadable("its checksum is wrong")
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise Unreadable("it is not JSON") from error
    if not isinstance(fields, dict):
        raise Unreadable("it is no object")
    return fields


def _note(fields: dict[str, Any]) -> TopicNote:
    match fields:
        case {
            "topic": topic_id,
            "name": str(name),
            "partitions": int(count),
            "configs": dict(configs),
            "internal": bool(internal),
            "incarnation": str(incarnation),
            "revision": int(revision),
        } if all(isinstance(value, str) for value in configs.values()):
            topic = Topic(name, _id(topic_id), count, configs, internal)
            return TopicNote(topic, _bytes(incarnation), revision)
    raise Unreadable("fields are missing, or are not what they should be")


def _id(text: object) -> TopicId:
    raw = _bytes(text)
    if len(raw) != _ID_BYTES:
        raise Unreadable("a topic id has 16 bytes")
    return TopicId(raw)


def _bytes(text: object) -> bytes:
    try:
        return bytes.fromhex(str(text))
    except ValueError as error:
        raise Unreadable("bytes are written in hexadecimal") from error


def _encode_noted(note: TopicNote) -> bytes:
    topic = note.topic
    return _line(
        {
            "topic": topic.topic_id.hex(),
            "name": topic.name,
            "partitions": topic.partition_count,
            "configs": dict(topic.configs),
            "internal": topic.internal,
            "incarnation": note.incarnation.hex(),
            "revision": note.revision,
        }
    )


def _encode_dropped(topic_id: TopicId) -> bytes:
    return _line({"dropped": topic_id.hex()})


def _line(fields: dict[str, Any]) -> bytes:
    text = json.dumps(fields, separators=(",", ":")).encode()
    return b"%08x %s\n" % (crc32c(text), text)
