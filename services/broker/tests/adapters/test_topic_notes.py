"""Notes of topics: one contract over the file and memory, then what only a file can suffer."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace_broker.adapters import topic_notes_file
from headrace_broker.adapters.memory_topic_notes import MemoryTopicNotes
from headrace_broker.adapters.topic_notes_file import DAMAGED, FILE, SLACK_BYTES, TopicNotesFile, decode, encode
from headrace_broker.core.topic_notes import NoteChanges, TopicNote
from headrace_broker.ports import TopicNotes
from headrace_common.core.errors import StorageFailed
from headrace_common.core.ids import TopicId
from headrace_common.core.image import Topic


def note_of(number: int, revision: int = 1, **configs: str) -> TopicNote:
    topic = Topic(f"t.{number}", TopicId(number.to_bytes(16, "big")), 1 + number % 5, configs, number % 2 == 0)
    return TopicNote(topic, b"i" * 16, revision)


def id_of(number: int) -> TopicId:
    return note_of(number).topic.topic_id


Opener = Callable[[], TopicNotes]


@pytest.fixture(params=["file", "memory"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """Opens the notes, and opens them again as the next process would."""
    if request.param == "file":
        return lambda: TopicNotesFile(tmp_path)
    last = [MemoryTopicNotes()]

    def again() -> TopicNotes:
        last.append(last[-1].reopen())
        return last[-1]

    return again


# --- the contract -----------------------------------------------------------------------------------------


async def test_what_is_kept_is_known_to_the_next_process(opened: Opener) -> None:
    notes = opened()
    assert notes.present == {}
    await notes.keep(NoteChanges((note_of(1), note_of(2, name="ä\n\"'"))))
    await notes.keep(NoteChanges((note_of(1, 5, retention="7"), note_of(3)), (id_of(2),)))
    expected = {id_of(1): note_of(1, 5, retention="7"), id_of(3): note_of(3)}
    assert notes.present == expected
    assert opened().present == expected


async def test_what_was_handed_out_does_not_change(opened: Opener) -> None:
    notes = opened()
    await notes.keep(NoteChanges((note_of(1),)))
    before = notes.present
    await notes.keep(NoteChanges((note_of(2),), (id_of(1),)))
    assert before == {id_of(1): note_of(1)}


async def test_a_topic_without_a_note_may_be_dropped(opened: Opener) -> None:
    await opened().keep(NoteChanges(dropped=(id_of(4),)))
    assert opened().present == {}


STEPS = st.lists(
    st.tuples(st.dictionaries(st.integers(0, 6), st.integers(1, 9), max_size=4), st.sets(st.integers(0, 6))),
    max_size=8,
)


@given(steps=STEPS, reopen=st.integers(0, 8))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_any_changes_are_kept_in_order(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    steps: list[tuple[dict[int, int], set[int]]],
    reopen: int,
) -> None:
    monkeypatch.setattr(topic_notes_file, "SLACK_BYTES", 300)  # the file is written anew now and then
    directory = tmp_path_factory.mktemp("notes")
    notes, expected = TopicNotesFile(directory), dict[TopicId, TopicNote]()
    for count, (noted, dropped) in enumerate(steps):
        if count == reopen:
            notes = TopicNotesFile(directory)
        dropped = dropped - noted.keys()
        changed = [note_of(number, revision) for number, revision in noted.items()]
        await notes.keep(NoteChanges(tuple(changed), tuple(map(id_of, dropped))))
        expected |= {note.topic.topic_id: note for note in changed}
        for number in dropped:
            expected.pop(id_of(number), None)
        assert notes.present == expected
    assert TopicNotesFile(directory).present == expected


# --- the file ---------------------------------------------------------------------------------------------


async def filled(directory: Path, count: int = 4) -> bytes:
    """A file with a line for the format and one for each topic, appended one by one."""
    notes = TopicNotesFile(directory)
    for number in range(count):
        await notes.keep(NoteChanges((note_of(number),)))
    return (directory / FILE).read_bytes()


async def test_a_write_that_a_crash_cut_short_is_forgotten_at_every_byte(tmp_path: Path) -> None:
    raw = await filled(tmp_path, 3)
    start = raw.rindex(b"\n", 0, -1) + 1
    for cut in range(start, len(raw)):
        (tmp_path / FILE).write_bytes(raw[:cut])
        notes = TopicNotesFile(tmp_path)
        assert notes.present.keys() - {id_of(2)} == {id_of(0), id_of(1)}
        assert not (tmp_path / DAMAGED).exists(), "nothing is damaged"
        await notes.keep(NoteChanges((note_of(3),)))
        assert TopicNotesFile(tmp_path).present == notes.present


@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_whatever_happens_to_the_bytes_no_note_is_made_up_and_the_file_heals(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("notes")
    raw = bytearray(await filled(directory))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] ^= 1 << data.draw(st.integers(0, 7))
    raw = raw[: data.draw(st.integers(0, len(raw)))]
    (directory / FILE).write_bytes(raw)
    notes = TopicNotesFile(directory)
    for id, note in notes.present.items():
        assert note == note_of(int.from_bytes(id, "big"))
    await notes.keep(NoteChanges(tuple(map(note_of, range(4)))))
    again = TopicNotesFile(directory)
    assert again.present == {id_of(number): note_of(number) for number in range(4)}
    assert decode((directory / FILE).read_bytes()).unreadable == []


async def test_what_is_damaged_is_set_aside_with_a_warning_and_the_rest_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    raw = await filled(tmp_path)
    broken = raw.replace(b"t.1", b"t.9")
    (tmp_path / FILE).write_bytes(broken)
    with caplog.at_level(logging.WARNING):
        notes = TopicNotesFile(tmp_path)
    assert notes.present == {id_of(number): note_of(number) for number in (0, 2, 3)}
    assert (tmp_path / DAMAGED).read_bytes() == broken
    assert "line 3: its checksum is wrong" in caplog.text
    caplog.clear()
    await notes.keep(NoteChanges((note_of(1),)))
    with caplog.at_level(logging.WARNING):
        assert TopicNotesFile(tmp_path).present == {id_of(number): note_of(number) for number in range(4)}
    assert caplog.text == "", "it is whole again"


@pytest.mark.parametrize(
    "fields",
    [
        b"[]",
        b"{",
        b"{}",
        b'{"format":2}',
        b'{"dropped":"00"}',
        b'{"dropped":7}',
        b'{"topic":"zz","name":"t","partitions":1,"configs":{},"internal":false,"incarnation":"","revision":1}',
        b'{"topic":"%b","name":1,"partitions":1,"configs":{},"internal":false,"incarnation":"","revision":1}'
        % (b"00" * 16),
        b'{"topic":"%b","name":"t","partitions":1,"configs":{"k":1},"internal":false,"incarnation":"","revision":1}'
        % (b"00" * 16),
        b"\xff\xfe",
    ],
)
def test_lines_with_a_right_checksum_and_no_sense_are_unreadable_too(tmp_path: Path, fields: bytes) -> None:
    line = b"%08x %s\n" % (topic_notes_file.crc32c(fields), fields)
    (tmp_path / FILE).write_bytes(encode([note_of(1)]) + line + encode([note_of(2)]).split(b"\n", 1)[1])
    assert TopicNotesFile(tmp_path).present == {id_of(1): note_of(1), id_of(2): note_of(2)}
    assert (tmp_path / DAMAGED).exists()


def test_a_file_without_a_single_line_is_damaged_and_not_merely_cut_short(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"\0" * 100)
    assert TopicNotesFile(tmp_path).present == {}
    assert (tmp_path / DAMAGED).read_bytes() == b"\0" * 100


def test_an_empty_file_and_a_directory_in_its_place_stop_nobody(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"")
    assert TopicNotesFile(tmp_path).present == {}
    assert (tmp_path / DAMAGED).read_bytes() == b""
    (tmp_path / DAMAGED).unlink()
    (tmp_path / FILE).unlink()
    (tmp_path / FILE).mkdir()
    assert TopicNotesFile(tmp_path).present == {}
    assert (tmp_path / DAMAGED).is_dir()
    assert not (tmp_path / FILE).exists()


async def test_a_disk_that_refuses_is_told_and_what_was_kept_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = TopicNotesFile(tmp_path)
    await notes.keep(NoteChanges((note_of(1),)))
    fsync = os.fsync

    def refused(handle: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", refused)
    with pytest.raises(StorageFailed, match=f"{FILE} cannot be written: .*Input/output error"):
        await notes.keep(NoteChanges((note_of(2),)))
    assert notes.present == {id_of(1): note_of(1)}
    monkeypatch.setattr(os, "fsync", fsync)
    await notes.keep(NoteChanges((note_of(3),)))
    assert TopicNotesFile(tmp_path).present == {id_of(1): note_of(1), id_of(3): note_of(3)}


async def test_a_directory_that_is_gone_is_told(tmp_path: Path) -> None:
    with pytest.raises(StorageFailed, match=FILE):
        await TopicNotesFile(tmp_path / "gone").keep(NoteChanges((note_of(1),)))


async def test_thousands_of_topics_one_by_one_write_what_they_are_worth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written anew for each, 2,000 topics would be 2,000 times half the file."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # counted is what is written, not how long it takes
    notes, written = TopicNotesFile(tmp_path), 0
    for revision in (1, 2):
        for number in range(1_000):
            before = (tmp_path / FILE).stat() if (tmp_path / FILE).exists() else None
            await notes.keep(NoteChanges((note_of(number, revision),)))
            after = (tmp_path / FILE).stat()
            same = before is not None and before.st_ino == after.st_ino
            written += after.st_size - before.st_size if same and before is not None else after.st_size
    live = len(encode(notes.present.values()))
    assert (tmp_path / FILE).stat().st_size <= 2 * live + SLACK_BYTES
    assert written <= 6 * live + SLACK_BYTES
    assert TopicNotesFile(tmp_path).present == notes.present
