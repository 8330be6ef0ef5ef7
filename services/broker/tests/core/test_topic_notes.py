"""Which notes of topics an image asks for."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from headrace_broker.core.topic_notes import NoteChanges, TopicNote, find_notes_due, is_newer
from headrace_common.core.ids import NO_NODE, NodeId, PartitionId, TopicId
from headrace_common.core.image import EMPTY_IMAGE, ClusterImage, Partition, Topic

IDS = [TopicId(bytes([n]) * 16) for n in range(1, 5)]
OLD, NEW = b"o" * 16, b"n" * 16


LED = frozenset(IDS)


def image_with(
    *topics: Topic, revision: int = 7, incarnation: bytes = NEW, led: frozenset[TopicId] = LED
) -> ClusterImage:
    """Of the topics in ``led`` the last partition has a leader, of the others none."""
    by_id = {topic.topic_id: topic for topic in topics}
    partitions = {}
    for one in by_id.values():
        for number in range(one.partition_count):
            id, last = PartitionId(one.topic_id, number), number + 1 == one.partition_count
            leader = NodeId(1) if last and one.topic_id in led else NO_NODE
            partitions[id] = Partition(id, (NodeId(1),), (), leader, 0, 0)
    return replace(EMPTY_IMAGE, incarnation=incarnation, revision=revision, topics=by_id, partitions=partitions)


def topic(number: int = 0, partitions: int = 1, **configs: str) -> Topic:
    return Topic(f"t{number}", IDS[number], partitions, configs)


def note(of: Topic, revision: int = 3, incarnation: bytes = NEW) -> TopicNote:
    return TopicNote(of, incarnation, revision)


def test_a_topic_that_gets_its_first_log_is_noted() -> None:
    assert find_notes_due(image_with(topic(0), topic(1)), {IDS[0]}, {}) == NoteChanges(noted=(note(topic(0), 7),))


def test_what_is_noted_already_is_not_written_again() -> None:
    assert find_notes_due(image_with(topic(0)), {IDS[0]}, {IDS[0]: note(topic(0))}) is None


def test_a_changed_setting_or_a_new_partition_is_noted() -> None:
    for changed in (topic(0, partitions=2), topic(0, retention_ms="5")):
        due = find_notes_due(image_with(changed), {IDS[0]}, {IDS[0]: note(topic(0))})
        assert due == NoteChanges(noted=(note(changed, 7),))


def test_metadata_of_another_incarnation_is_noted_even_if_it_says_the_same_at_a_lower_revision() -> None:
    due = find_notes_due(image_with(topic(0), revision=2), {IDS[0]}, {IDS[0]: note(topic(0), 900, OLD)})
    assert due == NoteChanges(noted=(note(topic(0), 2, NEW),))


def test_a_stray_keeps_its_note_whatever_the_incarnation() -> None:
    notes = {IDS[0]: note(topic(0), 900, OLD)}
    assert find_notes_due(image_with(topic(1)), {IDS[0]}, notes) is None


def test_while_the_metadata_is_restored_the_notes_stay_as_they_were() -> None:
    newer = {IDS[0]: note(topic(0, partitions=4), 900, OLD)}
    restored = image_with(topic(0, partitions=2), topic(1), led=frozenset())
    assert is_newer(newer[IDS[0]], restored)
    assert find_notes_due(restored, {IDS[0]}, newer) is None
    assert find_notes_due(restored, {IDS[0], IDS[1]}, newer) == NoteChanges(noted=(note(topic(1), 7),)), (
        "there was none"
    )
    decided = image_with(topic(0, partitions=4), revision=9, led=frozenset({IDS[0]}))
    assert not is_newer(newer[IDS[0]], decided)
    assert find_notes_due(decided, {IDS[0]}, newer) == NoteChanges(noted=(note(topic(0, partitions=4), 9),))


def test_a_topic_that_nobody_leads_is_noted_anew_in_the_same_incarnation() -> None:
    changed = topic(0, retention_ms="5")
    due = find_notes_due(image_with(changed, led=frozenset()), {IDS[0]}, {IDS[0]: note(topic(0))})
    assert due == NoteChanges(noted=(note(changed, 7),))


def test_an_older_image_of_the_same_incarnation_changes_no_note() -> None:
    assert find_notes_due(image_with(topic(0)), {IDS[0]}, {IDS[0]: note(topic(0, partitions=2), 8)}) is None
    assert not is_newer(None, image_with(topic(0)))


def test_the_note_of_a_topic_without_logs_is_dropped() -> None:
    due = find_notes_due(image_with(topic(0)), set(), {IDS[0]: note(topic(0))})
    assert due == NoteChanges(dropped=(IDS[0],))


TOPICS = st.builds(
    lambda id, name, count, value, internal: Topic(name, id, count, {"k": value} if value else {}, internal),
    st.sampled_from(IDS),
    st.sampled_from(["a", "b"]),
    st.integers(1, 2),
    st.sampled_from(["", "1", "2"]),
    st.booleans(),
)
NOTES = st.lists(st.builds(TopicNote, TOPICS, st.sampled_from([OLD, NEW]), st.integers(1, 9))).map(
    lambda notes: {one.topic.topic_id: one for one in notes}
)
IMAGES = st.builds(
    lambda topics, revision, incarnation, led: image_with(*topics, revision=revision, incarnation=incarnation, led=led),
    st.lists(TOPICS),
    st.integers(1, 9),
    st.sampled_from([OLD, NEW]),
    st.frozensets(st.sampled_from(IDS)),
)


@given(IMAGES, st.sets(st.sampled_from(IDS)), NOTES)
def test_after_the_changes_the_notes_are_what_the_image_says_and_nothing_more_is_due(
    image: ClusterImage, held: set[TopicId], notes: dict[TopicId, TopicNote]
) -> None:
    due = find_notes_due(image, held, notes) or NoteChanges()
    noted = {one.topic.topic_id: one for one in due.noted}
    assert len(noted) == len(due.noted)
    assert not noted.keys() & set(due.dropped)
    after = {id: one for id, one in (notes | noted).items() if id not in due.dropped}
    for id in IDS:
        if id not in held:
            assert id not in after, "nothing is noted of what has no logs here"
        elif id not in image.topics:
            assert after.get(id) == notes.get(id), "a stray keeps what was noted"
        elif is_newer(notes.get(id), image):
            assert after[id] is notes[id], "what may be newer stays"
        else:
            assert after[id].topic == image.topics[id]
            assert after[id].incarnation == image.incarnation
            known = notes.get(id)
            if known is not None and (known.topic, known.incarnation) == (image.topics[id], image.incarnation):
                assert after[id] is known, "what is true already is not written again"
            else:
                assert after[id].revision == image.revision
    assert find_notes_due(image, held, after) is None
