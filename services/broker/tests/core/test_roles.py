"""What a replica does about a newer image."""

from __future__ import annotations

from dataclasses import replace

import pytest
from services.broker.tests.kit.assignments import assigned
from services.broker.tests.kit.batches import NOW_MS

from headrace_broker.core.partition import Partition
from headrace_broker.core.partition_events import Deposed, Elected, Followed, Reassigned
from headrace_broker.core.roles import Turn, choose_role, find_changed
from headrace_broker.core.rows import LogId
from headrace_common.core.configs import TopicConfig
from headrace_common.core.errors import NotLeader
from headrace_common.core.ids import NO_NODE, NodeId, PartitionId, TopicId
from headrace_common.core.image import Partition as PartitionMetadata

ME, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)
ALL = (ME, TWO, THREE)
ID = PartitionId(TopicId(b"t" * 16), 0)
MOVED = NotLeader("moved")
LEADS = Elected(assigned(5, ALL), 0.0)
FOLLOWS = Followed(TWO, 5, MOVED)


def log(*events: Elected | Followed | Deposed) -> Partition:
    core = Partition.create(ID, LogId(4), TopicConfig.effective({}, {}), NOW_MS)[0]
    for event in events:
        core.handle(event)
    return core


def told(
    core: Partition, leader: NodeId, epoch: int, *, sound: bool = True, may_lead: bool = True
) -> type[Turn] | None:
    partition = PartitionMetadata(ID, ALL, ALL, leader, epoch, 9)
    event = choose_role(core, partition, assigned(epoch, ALL), 1.0, sound=sound, may_lead=may_lead)
    return None if event is None else type(event)


@pytest.mark.parametrize("core", [log(), log(FOLLOWS), log(Deposed(MOVED)), log(LEADS)])
def test_whom_the_image_names_leads_in_a_new_epoch_if_it_is_the_process_that_the_image_knows(core: Partition) -> None:
    assert told(core, ME, 6) is Elected
    assert told(core, ME, 6, may_lead=False) is None


def test_who_leads_in_that_epoch_hears_of_the_new_state_also_when_it_is_fenced() -> None:
    assert told(log(LEADS), ME, 5) is Reassigned
    assert told(log(LEADS), ME, 5, may_lead=False) is Reassigned


def test_a_follower_begins_once_in_each_epoch() -> None:
    assert told(log(), TWO, 5) is Followed
    assert told(log(FOLLOWS), TWO, 5) is None
    assert told(log(FOLLOWS), TWO, 6) is Followed
    assert told(log(FOLLOWS), THREE, 6) is Followed
    assert told(log(LEADS), TWO, 6) is Followed


def test_a_damaged_log_follows_but_does_not_lead() -> None:
    assert told(log(), TWO, 5, sound=False) is Followed
    assert told(log(), ME, 5, sound=False) is None


def test_a_damaged_log_that_is_named_leader_does_not_go_on_with_whom_it_followed() -> None:
    assert told(log(FOLLOWS), ME, 6, sound=False) is Deposed


def test_where_nobody_leads_nobody_goes_on() -> None:
    assert told(log(), NO_NODE, 5) is None
    assert told(log(LEADS), NO_NODE, 6) is Deposed
    assert told(log(FOLLOWS), NO_NODE, 6) is Deposed


def test_what_an_image_did_not_change_is_not_looked_at() -> None:
    one, other = (PartitionMetadata(PartitionId(ID.topic_id, n), ALL, ALL, ME, 5, 9) for n in range(2))
    assert list(find_changed({}, {one.id: one})) == [one.id]
    assert list(find_changed({one.id: one, other.id: other}, {one.id: one, other.id: other})) == []
    assert list(find_changed({one.id: one, other.id: other}, {one.id: one})) == [other.id]
    assert list(find_changed({one.id: one}, {other.id: other})) == [other.id, one.id]
    assert list(find_changed({one.id: one}, {one.id: replace(one, partition_epoch=10)})) == [one.id]
