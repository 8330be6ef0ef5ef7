"""
Who leads after the metadata was restored from a backup, and which topics there are: decided from what brokers have.

What the backup says of leaders and in-sync replicas is not believed, and every broker that may hold logs was asked.
A record that was acknowledged is on every disk that was in the committed ISR then, and in each log that a later
leader wrote; so of all whole logs the longest, by the epoch of its last record and then by its end, has all such
records (as in Raft). Decisions are written as eligible leader replicas; nobody leads, so no log changes, until all
are written. So each can be made again, by any controller, after any crash. Called by the engine's ``restoring``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headrace_common.core.ids import NO_NODE, NodeId, PartitionId, TopicId
from headrace_common.core.image import ClusterImage, Partition, ShardKey, Topic
from headrace_controller.core.election import check
from headrace_controller.core.held import (
    HeldTopic,
    Holders,
    Inventories,
    by_partition,
    by_topic,
    notes_of,
    tokens,
)
from headrace_controller.core.restore_record import Restore


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """A topic as it is to be written, with those of its partitions that are new."""

    topic: Topic
    new: tuple[Partition, ...]
    was: Topic | None
    """The topic that has the name now; None: nobody has."""
    delete_replaced: bool = False
    """``was`` is another topic, deleted after the backup, and brokers have only blank logs of it: they may go."""

    @property
    def adopted(self) -> bool:
        """The metadata did not know it."""
        return self.was is None or self.was.topic_id != self.topic.topic_id


@dataclass(frozen=True, slots=True)
class Plan:
    """All that follows from what brokers have."""

    logs: Mapping[PartitionId, Holders]
    """For ``decide_leaders``, partition by partition."""
    topics: tuple[TopicPlan, ...]
    """Adopted, or with more partitions or other settings than in the backup."""
    left: Mapping[TopicId, str]
    """Topics that stay stray, and why."""
    tokens: Mapping[ShardKey, int]
    """Fencing tokens that shard epochs have to pass."""
    empty_topics: int
    """Topics that nobody has anything of."""


def decide_leaders(partition: Partition, holders: Holders, asked: Sequence[NodeId], wanted: int = 0) -> Partition:
    """
    The partition with its eligible leaders, the longest whole logs; the same object when that was decided before.

    With no log but damaged ones nobody is eligible and it waits for an operator. With none at all it begins empty.

    Args:
        asked: all brokers that said what they have, ascending.
        wanted: replicas of a new partition, which has none yet; else it keeps as many as it has.
    """
    if partition.isr or partition.elr or partition.last_known_elr:
        return partition
    logs = {b: log for b, log in holders.items() if not log.blank}
    whole = {b: log for b, log in logs.items() if not log.damaged}
    best = max((log.length for log in whole.values()), default=None)
    best_first = _replicas(partition, whole or logs, holders, asked)[: wanted or len(partition.replicas)]
    replicas = _in_order_of(partition.replicas, best_first)
    if best is not None:
        eligible = tuple(r for r in replicas if r in whole and whole[r].length == best)
    else:
        eligible = () if logs else tuple(r for r in replicas if r in asked)
    known = (max(log.known_epoch, log.last_epoch) for log in holders.values())
    longer = best is not None and any(log.length > best for log in logs.values())
    new = replace(
        partition,
        replicas=replicas,
        elr=eligible,
        leader_epoch=max(partition.leader_epoch, *known, 0),
        recovering=partition.recovering or longer,
    )
    if new == partition:
        return partition
    new = replace(new, partition_epoch=partition.partition_epoch + 1)
    check(new)
    return new


def blank_leftovers(partition: Partition, holders: Holders) -> tuple[NodeId, ...]:
    """Brokers that are no replicas and made an empty log for what the backup said; nothing is lost with it."""
    return tuple(sorted(b for b, log in holders.items() if log.blank and b not in partition.replicas))


def fresh(id: PartitionId) -> Partition:
    """A partition that the metadata does not know, to be given to ``decide_leaders``."""
    return Partition(id, (), (), NO_NODE, leader_epoch=-1, partition_epoch=-1)


def plan_topics(image: ClusterImage, restore: Restore, inventories: Inventories) -> Plan:
    """What is to be done with topics, once every expected broker was asked."""
    asked = sorted(inventories)
    logs = by_partition(inventories)
    held = by_topic(logs)
    notes = _newest(inventories, restore, image.incarnation)
    plans: dict[str, TopicPlan] = {}
    for topic in image.topics.values():
        plan = _plan_known(image, topic, held.get(topic.topic_id, {}), notes.get(topic.topic_id), restore, asked)
        if plan is not None:
            plans[topic.name] = plan
    left: dict[TopicId, str] = {}
    strays = [i for i in held if i not in image.topics and i not in image.deletions]
    for topic_id in sorted(strays, key=lambda i: _age(notes.get(i), restore), reverse=True):  # the newest has its name
        note = notes.get(topic_id)
        if note is None:
            left[topic_id] = "no broker knows its name"
            continue
        name = note.topic.name
        if name in plans and plans[name].adopted:
            left[topic_id] = f"its name {name} is taken by a newer topic"
            continue
        was = image.topic(name)
        if was is not None and not _replaces(note, notes.get(was.topic_id), was, restore):
            left[topic_id] = f"its name {name} is taken"
            continue
        plans[name] = _plan_adoption(note.topic, held, was, asked)
    passed: dict[ShardKey, int] = {}
    gone = {p.was.topic_id for p in plans.values() if p.adopted and p.was is not None}
    known = [t for t in image.topics.values() if t.topic_id not in gone]
    for topic in (*known, *(p.topic for p in plans.values())):
        passed.update(tokens(topic, held.get(topic.topic_id, {})))
    empty = sum(not _anything(held.get(t.topic_id, {})) for t in known)
    return Plan(logs, tuple(plans.values()), left, passed, empty)


def adoption(topic: Topic, held: Mapping[int, Holders], asked: Sequence[NodeId], was: Topic | None = None) -> TopicPlan:
    """A topic made of what brokers have: each partition gets as many replicas as the best copied one has."""
    copies = (sum(not log.damaged for log in holders.values()) for holders in held.values())
    wanted = max(1, *copies)
    ids = (PartitionId(topic.topic_id, n) for n in range(topic.partition_count))
    new = tuple(decide_leaders(fresh(id), held.get(id.partition, {}), asked, wanted) for id in ids)
    return TopicPlan(topic, new, was)


def count_in(held: Mapping[int, Holders]) -> int:
    """How many partitions a topic has at least, by the logs that are there."""
    return max((n + 1 for n, h in held.items() if any(not log.blank for log in h.values())), default=0)


def _plan_adoption(
    topic: Topic, held: Mapping[TopicId, Mapping[int, Holders]], was: Topic | None, asked: Sequence[NodeId]
) -> TopicPlan:
    logs = held[topic.topic_id]
    whole = replace(topic, partition_count=max(topic.partition_count, count_in(logs)))
    plan = adoption(whole, logs, asked, was)
    return replace(plan, delete_replaced=was is not None and not _anything(held.get(was.topic_id, {})))


def _plan_known(
    image: ClusterImage,
    topic: Topic,
    held: Mapping[int, Holders],
    note: HeldTopic | None,
    restore: Restore,
    asked: Sequence[NodeId],
) -> TopicPlan | None:
    """Partitions and settings that it got after the backup; None: it is as it was."""
    now = replace(topic, partition_count=max(topic.partition_count, count_in(held)))
    if note is not None and _is_newer(note, restore):
        count = max(now.partition_count, note.topic.partition_count)
        now = replace(now, partition_count=count, configs=note.topic.configs)
    if now == topic:
        return None
    first = image.partitions.get(PartitionId(topic.topic_id, 0))
    wanted = 1 if first is None else len(first.replicas)
    ids = (PartitionId(topic.topic_id, n) for n in range(topic.partition_count, now.partition_count))
    new = tuple(decide_leaders(fresh(id), held.get(id.partition, {}), asked, wanted) for id in ids)
    return TopicPlan(now, new, topic)


def _replicas(partition: Partition, logs: Holders, holders: Holders, asked: Sequence[NodeId]) -> tuple[NodeId, ...]:
    """
    Everybody, the best first: the longest logs, then who is to have it, then who has an empty log, then anybody. Where
    all are alike each partition begins with another broker: the first of them is its preferred leader.
    """
    turn = partition.id.partition % len(asked)
    turned = (*asked[turn:], *asked[:turn])
    order = {b: place for place, b in enumerate(dict.fromkeys((*partition.replicas, *turned)))}
    ranked = sorted(logs, key=lambda b: (*(-n for n in logs[b].length), order[b]))
    had = [b for b in partition.replicas if b in asked]
    away = [b for b in partition.replicas if b not in asked]
    anybody = (*(b for b in turned if b in holders), *turned)
    return tuple(dict.fromkeys((*ranked, *had, *(away if ranked or had else ()), *anybody)))


def _in_order_of(before: Sequence[NodeId], chosen: Sequence[NodeId]) -> tuple[NodeId, ...]:
    """Those who stay as they were, so that preferred leaders stay too; then the others as chosen."""
    return (*(b for b in before if b in chosen), *(b for b in chosen if b not in before))


def _newest(inventories: Inventories, restore: Restore, present: bytes) -> dict[TopicId, HeldTopic]:
    """What was heard last of each topic; what the present metadata said is but the backup again."""
    found: dict[TopicId, HeldTopic] = {}
    for note in notes_of(inventories):
        if note.incarnation == present:
            continue
        known = found.get(note.topic.topic_id)
        if known is None or _age(note, restore) > _age(known, restore):
            found[note.topic.topic_id] = note
    return found


def _age(note: HeldTopic | None, restore: Restore) -> tuple[int, int]:
    """Greater is newer. Revisions count within one incarnation; one that the backup does not know came after it."""
    if note is None:
        return -1, 0
    known = restore.lineage
    return (known.index(note.incarnation) if note.incarnation in known else len(known)), note.revision


def _is_newer(note: HeldTopic, restore: Restore) -> bool:
    return _age(note, restore) > (len(restore.lineage) - 1, restore.known_revision)


def _replaces(note: HeldTopic, of_other: HeldTopic | None, other: Topic, restore: Restore) -> bool:
    """Whether ``other`` was deleted after the backup, since this topic got its name later."""
    return not other.internal and _is_newer(note, restore) and _age(note, restore) > _age(of_other, restore)


def _anything(held: Mapping[int, Holders]) -> bool:
    return any(not log.blank for holders in held.values() for log in holders.values())
