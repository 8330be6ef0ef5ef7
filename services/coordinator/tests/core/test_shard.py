"""A shard: commits and who may make them, deletion, expiry, loading, its sense of time; named after Kafka's rules."""

from __future__ import annotations

import pytest

from headrace_common.core.errors import ErrorCode, UnsupportedVersion
from headrace_common.core.ids import PartitionId
from headrace_coordinator.core.effects import OffsetOutcomes, OffsetsFound
from headrace_coordinator.core.events import CommitAsked, DescriptionAsked, Loaded, OffsetsAsked, OffsetToCommit, Woken
from headrace_coordinator.core.records import NOTE, RecordDamaged, group_key, offset_key
from headrace_coordinator.core.shard import Shard
from headrace_coordinator.core.values import GroupProtocol, GroupState

from .world import TODAY, G, World, sub, topic_id

E = ErrorCode
DAY = 24 * 3_600_000


@pytest.fixture
def w() -> World:
    return World()


# --- commits --------------------------------------------------------------------------------------------------


def test_a_commit_of_the_present_generation_is_kept(w: World) -> None:
    (a,) = w.stable(1)
    assert w.commit(5, a, 1, metadata="note") is E.NONE
    result = w.ask(OffsetsAsked(G, w.ref(), w.at))
    assert isinstance(result, OffsetsFound)
    (found,) = result.offsets
    assert found.committed is not None
    assert (found.topic, found.partition, found.committed.offset) == ("t", 0, 5)
    assert (found.committed.metadata, found.committed.leader_epoch) == ("note", 3)
    assert found.committed.committed_at_ms == w.at.wall_ms
    assert w.committed(partition=1) is None
    assert w.committed(topic="ghost") is None


@pytest.mark.parametrize(
    ("member", "generation", "instance", "error"),
    [
        ("m-1", 0, None, E.ILLEGAL_GENERATION),
        ("m-1", 2, None, E.ILLEGAL_GENERATION),
        ("m-1", -1, None, E.ILLEGAL_GENERATION),
        ("ghost", 1, None, E.UNKNOWN_MEMBER_ID),
        ("", -1, None, E.UNKNOWN_MEMBER_ID),
        ("m-1", 1, "nobody", E.UNKNOWN_MEMBER_ID),
    ],
)
def test_commits_that_are_not_of_the_group_change_nothing(
    w: World, member: str, generation: int, instance: str | None, error: ErrorCode
) -> None:
    w.stable(1)
    before = dict(w.log)
    assert w.commit(5, member, generation, instance=instance) is error
    assert w.committed() is None
    assert w.log == before


def test_commits_are_accepted_while_members_are_gathered_and_refused_until_the_assignment_is_there(w: World) -> None:
    a, b = w.stable(1, 2)
    w.join(3)
    assert w.commit(5, a, 1) is E.NONE
    w.join(1, a)
    w.join(2, b)
    assert w.commit(6, a, 2) is E.REBALANCE_IN_PROGRESS
    assert w.commit(6, a, 1) is E.ILLEGAL_GENERATION
    assert w.committed() == 5


def test_a_commit_is_a_sign_of_life_of_a_classic_member(w: World) -> None:
    (a,) = w.stable(1)
    for n in range(4):
        w.sleep(9_000)
        assert w.commit(n, a, 1) is E.NONE


def test_commits_of_the_server_side_protocol_need_the_present_epoch(w: World) -> None:
    w.enter(1, "a")
    assert w.commit(5, "a", 1) is E.NONE
    w.change_topics({"t": 6})
    assert w.commit(6, "a", 1) is E.STALE_MEMBER_EPOCH
    assert w.commit(6, "a", 3) is E.STALE_MEMBER_EPOCH
    assert w.commit(6, "ghost", 2) is E.UNKNOWN_MEMBER_ID
    assert w.commit(6) is E.UNKNOWN_MEMBER_ID
    assert w.committed() == 5
    assert w.commit(7, "a", 2) is E.NONE
    assert w.commit(8, "a", 2, instance="nobody") is E.UNKNOWN_MEMBER_ID


def test_commits_of_a_member_that_is_out_change_nothing(w: World) -> None:
    w.enter(1, "a")
    w.commit(5, "a", 1)
    w.sleep(45_000)
    assert w.commit(6, "a", 1) is E.UNKNOWN_MEMBER_ID
    assert w.committed() == 5


def test_an_administrator_commits_for_groups_without_members(w: World) -> None:
    assert w.commit(7) is E.NONE
    assert w.committed() == 7
    d = w.description()
    assert (d.protocol, d.state, d.members) == (None, GroupState.EMPTY, ())
    (a,) = w.stable(1)
    assert w.commit(8) is E.UNKNOWN_MEMBER_ID
    w.leave(1, a)
    assert w.commit(8) is E.NONE
    assert w.commit(9, "", 2) is E.UNKNOWN_MEMBER_ID
    assert w.commit(9, "m", 2) is E.UNKNOWN_MEMBER_ID
    assert w.committed() == 8


def test_a_group_that_nobody_knows_takes_no_members_commit(w: World) -> None:
    assert w.commit(7, "m", 1) is E.UNKNOWN_MEMBER_ID
    assert w.commit(7, instance="i") is E.UNKNOWN_MEMBER_ID
    assert w.shard.list_groups() == []


def test_each_entry_of_a_commit_stands_for_itself(w: World) -> None:
    entries = (
        OffsetToCommit("t", 0, 1),
        OffsetToCommit("ghost", 0, 1),
        OffsetToCommit("t", 4, 1),
        OffsetToCommit("t", -1, 1),
        OffsetToCommit("t", 1, -1),
        OffsetToCommit("t", 1, 2**63),
        OffsetToCommit("t", 2, 1, leader_epoch=-2),
        OffsetToCommit("t", 3, 1, metadata="ü" * 2_049),
        OffsetToCommit("t", 3, 9, metadata="ü" * 2_048),
    )
    result = w.ask(CommitAsked(G, w.ref(), w.at, "", None, -1, entries))
    assert isinstance(result, OffsetOutcomes)
    errors = [E.NONE if o.error is None else o.error.code for o in result.outcomes]
    unknown, bad = E.UNKNOWN_TOPIC_OR_PARTITION, E.INVALID_REQUEST
    assert errors == [E.NONE, unknown, unknown, unknown, bad, bad, bad, E.OFFSET_METADATA_TOO_LARGE, E.NONE]
    assert [w.committed(partition=p) for p in range(4)] == [1, None, None, 9]
    assert w.appends == 1


def test_nothing_is_written_for_a_commit_of_which_nothing_is_valid(w: World) -> None:
    assert w.commit(1, topic="ghost") is E.UNKNOWN_TOPIC_OR_PARTITION
    assert (w.log, w.shard.list_groups()) == ({}, [])


# --- reading offsets ------------------------------------------------------------------------------------------


def test_members_read_offsets_with_their_epoch_and_anybody_without(w: World) -> None:
    w.enter(1, "a")
    assert w.fetch_as("a", 1) is E.NONE
    assert w.fetch_as("a", None) is E.NONE
    assert w.fetch_as("a", 0) is E.STALE_MEMBER_EPOCH
    assert w.fetch_as("ghost", 1) is E.UNKNOWN_MEMBER_ID
    v = World()
    assert v.fetch_as("a", 1) is E.UNKNOWN_MEMBER_ID
    (a,) = v.stable(1)
    assert v.fetch_as(a, 1) is E.NONE
    assert v.fetch_as("ghost", 1) is E.UNKNOWN_MEMBER_ID


def test_a_topic_that_is_made_anew_has_no_offsets(w: World) -> None:
    w.commit(7)
    w.change_topics({"t": 4}, version=2)
    assert w.committed() is None
    assert w.commit(1) is E.NONE
    assert w.committed() == 1


def test_offsets_of_deleted_topics_are_forgotten_for_good(w: World) -> None:
    w.commit(7)
    w.change_topics({})
    assert w.log == {offset_key(G, PartitionId(topic_id("t"), 0)): None}
    w.change_topics({"t": 4})
    assert w.committed() is None


def test_what_the_first_image_does_not_know_is_kept(w: World) -> None:
    w.commit(7)
    topics, w.topics = w.topics, {}
    w.move()
    assert w.committed() is None
    w.change_topics({n: i.partitions for n, i in topics.items()})
    assert w.committed() == 7


# --- deletion -------------------------------------------------------------------------------------------------


def test_groups_without_members_are_deleted_with_their_offsets(w: World) -> None:
    w.wall = TODAY
    (a,) = w.stable(1)
    w.commit(5, a, 1)
    assert w.delete_group() is E.NON_EMPTY_GROUP
    w.leave(1, a)
    assert w.delete_group() is E.NONE
    assert w.delete_group() is E.GROUP_ID_NOT_FOUND
    assert set(w.log.values()) == {None}
    w.move()
    assert w.shard.list_groups() == []


def test_offsets_are_deleted_except_of_topics_that_are_read() -> None:
    w = World({"t": 2, "u": 2})
    w.enter(1, "a", "u")
    w.commit(5, "a", 1, topic="t")
    w.commit(6, "a", 1, topic="u")
    result = w.delete_offsets("t", 0, 1)
    assert isinstance(result, OffsetOutcomes)
    assert [o.error for o in result.outcomes] == [None, None]
    refused = w.delete_offsets("u", 0)
    assert isinstance(refused, OffsetOutcomes)
    assert [o.error.code for o in refused.outcomes if o.error] == [E.GROUP_SUBSCRIBED_TO_TOPIC]
    unknown = w.delete_offsets("ghost", 0)
    assert isinstance(unknown, OffsetOutcomes)
    assert [o.error.code for o in unknown.outcomes if o.error] == [E.UNKNOWN_TOPIC_OR_PARTITION]
    assert (w.committed("t"), w.committed("u")) == (None, 6)
    w.move()
    assert (w.committed("t"), w.committed("u")) == (None, 6)


def test_what_is_asked_of_a_group_that_is_not_there() -> None:
    w = World()
    assert getattr(w.delete_offsets("t", 0), "code", None) is E.GROUP_ID_NOT_FOUND
    assert getattr(w.ask(DescriptionAsked("x", w.ref(), w.at)), "code", None) is E.GROUP_ID_NOT_FOUND


# --- expiry ---------------------------------------------------------------------------------------------------


def test_offsets_expire_seven_days_after_the_group_became_empty(w: World) -> None:
    w.wall = TODAY
    (a,) = w.stable(1, session_ms=1_800_000)
    w.commit(5, a, 1)
    for _ in range(3 * 60):
        w.sleep(DAY / 60)
        assert w.beat(1, a, 1) is E.NONE
    w.leave(1, a)
    w.sleep(6 * DAY)
    assert w.committed() == 5
    w.sleep(DAY + 700_000)
    assert w.shard.list_groups() == []
    assert set(w.log.values()) == {None}


def test_offsets_of_a_group_with_members_do_not_expire_unless_nobody_reads_the_topic() -> None:
    w = World({"t": 1, "u": 1}, group_consumer_session_timeout_ms=DAY)
    w.enter(1, "a", "u")
    w.commit(5, "a", 1, topic="t")
    w.commit(6, "a", 1, topic="u")
    for _ in range(15):
        w.sleep(DAY // 2)
        w.pulse(1, "a", 1)
    assert (w.committed("t"), w.committed("u")) == (None, 6)


def test_commits_of_an_administrator_expire_seven_days_after_they_were_made(w: World) -> None:
    w.commit(5)
    w.sleep(4 * DAY)
    w.commit(6, partition=1)
    w.sleep(3 * DAY + 700_000)
    assert (w.committed(), w.committed(partition=1)) == (None, 6)
    w.sleep(4 * DAY)
    assert w.shard.list_groups() == []


def test_retention_is_counted_over_moves_of_the_shard(w: World) -> None:
    (a,) = w.stable(1)
    w.commit(5, a, 1)
    w.leave(1, a)
    w.sleep(4 * DAY)
    before = w.at.wall_ms
    w.loaded()
    assert w.at.wall_ms == before
    w.sleep(2 * DAY)
    assert w.committed() == 5
    w.sleep(DAY + 700_000)
    assert w.shard.list_groups() == []


def test_an_empty_group_without_offsets_goes_with_the_next_look(w: World) -> None:
    (a,) = w.stable(1)
    w.leave(1, a)
    w.sleep(600_000)
    assert w.shard.list_groups() == []


# --- loading --------------------------------------------------------------------------------------------------


def test_a_new_coordinator_knows_what_was_committed(w: World) -> None:
    (a,) = w.stable(1)
    w.commit(5, a, 1)
    w.commit(6, a, 1)
    w.commit(9, group="other")
    w.move()
    assert (w.committed(), w.committed(group="other")) == (6, 9)
    assert {line.group_id: line.protocol for line in w.shard.list_groups()} == {G: GroupProtocol.CLASSIC, "other": None}


def test_notes_and_tombstones_say_nothing() -> None:
    w = World()
    w.log = {NOTE: None, group_key("gone"): None}
    w.move()
    assert w.shard.list_groups() == []


@pytest.mark.parametrize(
    "row", [(b"\x01\x01rubbish", b"x"), (group_key("g"), b"\x01"), (group_key("g"), b""), (b"", b"x")]
)
def test_a_record_that_cannot_be_read_stops_the_loading(w: World, row: tuple[bytes, bytes]) -> None:
    shard = Shard(0, w.settings)
    shard.replay([row])
    with pytest.raises(RecordDamaged):
        shard.handle(Loaded(w.at))


def test_a_record_of_a_newer_version_is_refused_with_both_numbers(w: World) -> None:
    shard = Shard(0, w.settings)
    shard.replay([(group_key("g"), b"\x07\x01")])
    with pytest.raises(UnsupportedVersion, match=r"format 7.*up to 3"):
        shard.handle(Loaded(w.at))


# --- time -----------------------------------------------------------------------------------------------------


def test_it_asks_to_be_woken_for_whatever_comes_first(w: World) -> None:
    assert w.shard.next_wake_ms() == w.now_ms + 600_000
    w.join(1)
    assert w.shard.next_wake_ms() == w.now_ms + 100
    w.sleep(100)
    w.join(2, group="other", subscription=sub("t"))
    assert w.shard.next_wake_ms() == w.now_ms + 100


def test_being_woken_for_nothing_does_nothing(w: World) -> None:
    w.stable(1, 2)
    log = dict(w.log)
    for _ in range(3):
        assert w.shard.handle(Woken(w.at)) == []
    assert w.log == log


def test_many_groups_are_woken_each_in_its_time(w: World) -> None:
    for i in range(20):
        w.pulse(i + 1, "m", 0, topics=["t"], owned={}, group=f"g{i}")
        w.sleep(100)
    for i in range(0, 20, 2):
        w.pulse(i + 1, "m", 1, group=f"g{i}")
    w.sleep(45_000 - 100)
    alive = {line.group_id for line in w.shard.list_groups() if line.members}
    assert alive == {f"g{i}" for i in range(0, 20, 2)}
    w.sleep(101)
    assert not any(line.members for line in w.shard.list_groups())
