"""The cluster image: deltas in a row equal the truth, a snapshot equals the deltas, gaps and old ones are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_common.core.ids import NO_NODE, Endpoint, NodeId, PartitionId, TopicId
from headrace_common.core.image import (
    EMPTY_IMAGE,
    ActiveController,
    ClusterImage,
    ImageDelta,
    ImageGap,
    ImageStale,
    Node,
    NodeKey,
    Partition,
    ReplicaRemoval,
    Role,
    Shard,
    ShardKey,
    ShardKind,
    Topic,
    TopicDeletion,
)

INCARNATION = b"m" * 16
node_ids = st.integers(0, 3).map(NodeId)
topic_ids = st.sampled_from([TopicId(bytes([n]) * 16) for n in range(4)])
keys = st.builds(NodeKey, st.sampled_from(Role), node_ids)
nodes = st.builds(
    Node, key=keys, grpc=st.just(Endpoint("h", 1)), incarnation=st.just(b"i" * 16), epoch=st.integers(0, 9)
)
configs = st.dictionaries(st.sampled_from("ab"), st.sampled_from("xy"))


@st.composite
def topics(draw: st.DrawFn) -> Topic:
    topic_id = draw(topic_ids)
    return Topic(f"topic-{topic_id[0]}", topic_id, draw(st.integers(1, 3)), draw(configs))


partitions = st.builds(
    Partition,
    id=st.builds(PartitionId, topic_ids, st.integers(0, 2)),
    replicas=st.just((NodeId(1),)),
    isr=st.just((NodeId(1),)),
    leader=node_ids,
    leader_epoch=st.integers(0, 9),
    partition_epoch=st.integers(0, 9),
)
shards = st.builds(
    Shard,
    key=st.builds(ShardKey, st.sampled_from(ShardKind), st.integers(0, 3)),
    owner=st.sampled_from([NO_NODE, NodeId(1), NodeId(2)]),
    epoch=st.integers(1, 9),
)
partition_ids = st.builds(PartitionId, topic_ids, st.integers(0, 2))
removals = st.builds(ReplicaRemoval, partition_ids, st.just((NodeId(1),)))


removed_topics = st.lists(topic_ids, max_size=1).map(tuple)
steps = st.fixed_dictionaries(
    {
        "nodes": st.lists(nodes, max_size=2, unique_by=lambda n: n.key).map(tuple),
        "topics": st.lists(topics(), max_size=2, unique_by=lambda t: t.topic_id).map(tuple),
        "partitions": st.lists(partitions, max_size=3, unique_by=lambda p: p.id).map(tuple),
        "deletions": st.lists(st.builds(TopicDeletion, topic_ids, st.just("d"), st.just(())), max_size=1).map(tuple),
        "removed_nodes": st.lists(keys, max_size=1).map(tuple),
        "removed_topics": removed_topics,
        "finished_deletions": removed_topics,
        "removals": st.lists(removals, max_size=1).map(tuple),
        "finished_removals": st.lists(partition_ids, max_size=1).map(tuple),
        "shards": st.lists(shards, max_size=3, unique_by=lambda s: s.key).map(tuple),
        "cluster_configs": st.none() | configs,
        "broker_configs": st.dictionaries(node_ids, configs, max_size=2),
        "active_controller": st.none() | st.builds(ActiveController, node_ids, st.integers(0, 9), st.none()),
        "feature_level": st.none() | st.integers(0, 9),
    }
)


class Truth:
    """The naive oracle: plain dictionaries, changed in place."""

    def __init__(self) -> None:
        self.nodes: dict = {}
        self.topics: dict = {}
        self.partitions: dict = {}
        self.deletions: dict = {}
        self.removals: dict = {}
        self.shards: dict = {}
        self.cluster: dict = {}
        self.brokers: dict = {}
        self.active = None
        self.level = 0

    def take(self, step: dict) -> None:
        for node in step["nodes"]:
            self.nodes[node.key] = node
        for topic in step["topics"]:
            self.topics[topic.topic_id] = topic
        for partition in step["partitions"]:
            self.partitions[partition.id] = partition
        for deletion in step["deletions"]:
            self.deletions[deletion.topic_id] = deletion
        for key in step["removed_nodes"]:
            self.nodes.pop(key, None)
        for topic_id in step["removed_topics"]:
            self.topics.pop(topic_id, None)
            self.partitions = {i: p for i, p in self.partitions.items() if i.topic_id != topic_id}
        for topic_id in step["finished_deletions"]:
            self.deletions.pop(topic_id, None)
        self.removals |= {r.id: r for r in step["removals"]}
        for id in step["finished_removals"]:
            self.removals.pop(id, None)
        self.shards |= {s.key: s for s in step["shards"]}
        if step["cluster_configs"] is not None:
            self.cluster = step["cluster_configs"]
        for node, own in step["broker_configs"].items():
            self.brokers[node] = own
        self.brokers = {n: c for n, c in self.brokers.items() if c}
        self.active = step["active_controller"] or self.active
        self.level = self.level if step["feature_level"] is None else step["feature_level"]


def delta(image: ClusterImage, step: dict) -> ImageDelta:
    previous = image.revision if image.revision else None
    return ImageDelta(INCARNATION, previous, image.revision + 3, "c", **step)


@given(st.lists(steps, min_size=1, max_size=6))
def test_deltas_lead_where_the_truth_is(sequence: list[dict]) -> None:
    image, truth = EMPTY_IMAGE, Truth()
    for step in sequence:
        before = image
        held = (dict(image.nodes), dict(image.topics), dict(image.partitions))
        image = image.apply(delta(image, step))
        truth.take(step)
        assert held == (before.nodes, before.topics, before.partitions), "an image is never changed"
    assert dict(image.nodes) == truth.nodes
    assert dict(image.topics) == truth.topics
    assert dict(image.partitions) == truth.partitions
    assert dict(image.deletions) == truth.deletions
    assert dict(image.removals) == truth.removals
    assert dict(image.shards) == truth.shards
    assert dict(image.cluster_configs) == truth.cluster
    assert dict(image.broker_configs) == truth.brokers
    assert image.active_controller == truth.active
    assert image.feature_level == truth.level
    assert image.topic_ids == {t.name: t.topic_id for t in truth.topics.values()}
    assert all(image.topic(t.name) is image.topics[t.topic_id] for t in truth.topics.values())


@given(st.lists(steps, min_size=1, max_size=4), st.lists(steps, max_size=4))
def test_a_snapshot_then_deltas_is_all_the_deltas(early: list[dict], late: list[dict]) -> None:
    image = EMPTY_IMAGE
    for step in early:
        image = image.apply(delta(image, step))
    follower = EMPTY_IMAGE.apply(image.snapshot())
    assert follower == image
    for step in late:
        d = delta(image, step)
        image, follower = image.apply(d), follower.apply(d)
    assert follower == image


@given(steps, steps, st.integers(-2, 5).filter(bool))
def test_a_gap_is_refused(one: dict, two: dict, off_by: int) -> None:
    image = EMPTY_IMAGE.apply(delta(EMPTY_IMAGE, one))
    wrong = replace(delta(image, two), previous_revision=image.revision + off_by)
    with pytest.raises(ImageGap):
        image.apply(wrong)


@given(steps, steps, st.booleans())
def test_what_is_older_or_of_another_incarnation_is_refused(one: dict, two: dict, snapshot: bool) -> None:
    image = EMPTY_IMAGE.apply(delta(EMPTY_IMAGE, one))
    later = delta(image, two)
    previous = None if snapshot else image.revision
    with pytest.raises(ImageStale):
        image.apply(replace(later, previous_revision=previous, revision=image.revision - 1))
    with pytest.raises(ImageStale):
        image.apply(replace(later, previous_revision=previous, incarnation=b"n" * 16))


def test_a_snapshot_of_the_same_revision_is_taken() -> None:
    image = EMPTY_IMAGE.apply(ImageDelta(INCARNATION, None, 5, "c"))
    assert image.apply(image.snapshot()) == image


def test_partitions_come_in_order_and_brokers_by_id() -> None:
    topic = Topic("t", TopicId(b"t" * 16), 3)
    one = (NodeId(1),)
    parts = tuple(Partition(PartitionId(topic.topic_id, n), one, one, NodeId(1), 0, 0) for n in (2, 0, 1))
    brokers = tuple(Node(NodeKey(Role.BROKER, NodeId(n)), Endpoint("h", 1), b"i" * 16, n) for n in (3, 1, 2))
    image = EMPTY_IMAGE.apply(ImageDelta(INCARNATION, None, 1, "c", nodes=brokers, topics=(topic,), partitions=parts))
    assert [p.id.partition for p in image.partitions_of(topic)] == [0, 1, 2]
    assert [n.key.id for n in image.brokers()] == [1, 2, 3]
