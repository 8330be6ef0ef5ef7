"""The mirror: what is complete becomes visible, and every controller sees the same image at the same revision."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_common.core.errors import UnsupportedVersion
from headrace_common.core.features import HIGHEST
from headrace_common.core.ids import NO_NODE, Endpoint, NodeId, PartitionId, TopicId
from headrace_common.core.image import (
    EMPTY_IMAGE,
    ActiveController,
    ClusterImage,
    ImageDelta,
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
from headrace_controller.core import records
from headrace_controller.core.mirror import Mirror
from headrace_controller.core.records import AccessRow, Cluster, Configs
from headrace_controller.core.store import (
    Change,
    Changes,
    Delete,
    DeleteUnder,
    KeyValue,
    Listing,
    Operation,
    Put,
)

T = TopicId(b"t" * 16)
ONE = Cluster("c1", b"i" * 16)
CLUSTER = Put(records.CLUSTER_KEY, records.encode(ONE))


class Store:
    """The naive oracle: a dictionary with revisions, and what a watch would have said."""

    def __init__(self) -> None:
        self.revision = 1
        self.items: dict[str, KeyValue] = {}

    def write(self, *operations: Operation) -> Changes:
        self.revision += 1
        changes = []
        for o in operations:
            match o:
                case Put(key, value):
                    old = self.items.get(key)
                    kv = KeyValue(key, value, old.create_revision if old else self.revision, self.revision)
                    self.items[key] = kv
                    changes.append(Change(key, kv, self.revision))
                case Delete(key):
                    gone = [key]
                case DeleteUnder(prefix):
                    gone = [k for k in self.items if k.startswith(prefix)]
            if not isinstance(o, Put):
                changes += [Change(k, None, self.revision) for k in gone if self.items.pop(k, None)]
        return Changes(self.revision, tuple(changes))

    def listing(self) -> Listing:
        return Listing(self.revision, tuple(self.items.values()))


def partition(n: int, topic: TopicId = T, epoch: int = 0) -> Partition:
    return Partition(PartitionId(topic, n), (NodeId(1),), (NodeId(1),), NodeId(1), epoch, epoch)


def put_partition(n: int, topic: TopicId = T, epoch: int = 0) -> Put:
    held = partition(n, topic, epoch)
    return Put(records.partition_key(held.id), records.encode(held))


def put_topic(count: int, name: str = "flights", topic: TopicId = T) -> Put:
    return Put(records.topic_key(name), records.encode(Topic(name, topic, count)))


def started() -> tuple[Store, Mirror]:
    store, mirror = Store(), Mirror()
    store.write(CLUSTER)
    mirror.load(store.listing())
    return store, mirror


class TestVisibility:
    def test_partitions_show_with_their_topic(self) -> None:
        store, mirror = started()
        assert mirror.apply(store.write(put_partition(0), put_partition(1))) is None
        assert len(mirror.hidden) == 2
        delta = mirror.apply(store.write(put_topic(2)))
        assert delta is not None
        assert [p.id.partition for p in delta.partitions] == [0, 1]
        assert not mirror.hidden

    def test_new_partitions_show_when_the_topic_counts_them(self) -> None:
        store, mirror = started()
        mirror.apply(store.write(put_partition(0), put_topic(1)))
        assert mirror.apply(store.write(put_partition(1))) is None
        delta = mirror.apply(store.write(put_topic(2)))
        assert delta is not None
        assert [p.id.partition for p in delta.partitions] == [1]

    def test_a_deleted_topic_takes_its_partitions_along(self) -> None:
        store, mirror = started()
        mirror.apply(store.write(put_partition(0), put_topic(1)))
        order = TopicDeletion(T, "flights", (NodeId(1),))
        delta = mirror.apply(
            store.write(Put(records.deletion_key(T), records.encode(order)), Delete(records.topic_key("flights")))
        )
        assert delta is not None
        assert (delta.removed_topics, delta.deletions) == ((T,), (order,))
        assert not mirror.image.partitions
        assert set(mirror.hidden) == {PartitionId(T, 0)}, "still in the store, to be swept"
        assert mirror.apply(store.write(DeleteUnder(records.partitions_prefix(T)))) is None
        assert not mirror.hidden

    def test_a_topic_created_again_in_one_batch(self) -> None:
        store, mirror = started()
        mirror.apply(store.write(put_partition(0), put_topic(1)))
        other = TopicId(b"u" * 16)
        one = store.write(Delete(records.topic_key("flights")))
        two = store.write(put_partition(0, other), put_topic(1, topic=other))
        delta = mirror.apply(Changes(two.revision, (*one.changes, *two.changes)))
        assert delta is not None
        assert delta.removed_topics == (T,)
        assert mirror.image.topic_ids == {"flights": other}
        assert set(mirror.image.partitions) == {PartitionId(other, 0)}

    def test_a_lost_election_key_is_told_as_nobody(self) -> None:
        store, mirror = started()
        active = ActiveController(NodeId(1), 7, Endpoint("h", 1))
        mirror.apply(store.write(Put(records.CONTROLLER_KEY, records.encode(active))))
        assert mirror.image.active_controller == active
        mirror.apply(store.write(Delete(records.CONTROLLER_KEY)))
        assert mirror.image.active_controller is not None
        assert mirror.image.active_controller.id == NO_NODE

    def test_unknown_keys_and_counters_do_not_move_the_image(self) -> None:
        store, mirror = started()
        before = mirror.image
        assert mirror.apply(store.write(Put("acls/x", b"?"), Put(records.PRODUCER_KEY, b"1000"))) is None
        assert mirror.image is before
        assert mirror.number(records.PRODUCER_KEY, 0) == 1000

    def test_shards_of_a_later_version_are_left_alone(self) -> None:
        store, mirror = started()
        before = mirror.image
        assert mirror.apply(store.write(Put("shards/later/0", b'{"v":9}'))) is None
        assert mirror.image is before

    def test_rows_of_access_come_change_and_go_as_they_are_and_are_kept_once(self) -> None:
        store, mirror = started()
        key, strange = records.access_key("grants/User:a/b"), b'{"v":9}'
        delta = mirror.apply(store.write(Put(key, strange), Put(records.access_key("state"), b"1")))
        assert delta is not None
        assert delta.access == {"grants/User:a/b": strange, "state": b"1"}
        assert mirror.image.access == delta.access, "a version that this one cannot read is kept, too"
        assert mirror.raw[key].value == b""
        before = mirror.image.access
        mirror.apply(store.write(put_partition(0), put_topic(1)))
        assert mirror.image.access is before, "readers know by it that nothing has changed"
        delta = mirror.apply(store.write(Delete(key)))
        assert delta is not None
        assert (delta.access, mirror.image.access) == ({"grants/User:a/b": b""}, {"state": b"1"})

    def test_rows_of_access_that_were_missed_come_with_the_list(self) -> None:
        store, mirror = started()
        mirror.apply(store.write(Put(records.access_key("a"), b"1"), Put(records.access_key("b"), b"1")))
        store.write(Put(records.access_key("b"), b"2"), Delete(records.access_key("a")))
        delta = mirror.load(store.listing())
        assert delta is not None
        assert (delta.access, mirror.image.access) == ({"a": b"", "b": b"2"}, {"b": b"2"})
        assert mirror.load(store.listing()) is None, "a list shows the same"

    def test_another_incarnation_replaces_the_image(self) -> None:
        store, mirror = started()
        mirror.apply(store.write(put_partition(0), put_topic(1)))
        other = Store()
        other.write(Put(records.CLUSTER_KEY, records.encode(Cluster("c1", b"j" * 16))))
        delta = mirror.load(other.listing())
        assert delta is not None
        assert delta.previous_revision is None
        assert not mirror.image.topics

    def test_a_rise_of_the_feature_level_is_a_step_of_its_own(self) -> None:
        store, mirror = started()
        delta = mirror.apply(store.write(Put(CLUSTER.key, records.encode(replace(ONE, feature_level=1)))))
        assert delta is not None
        assert (delta.feature_level, delta.previous_revision) == (1, 2)
        assert (mirror.image.feature_level, mirror.image.revision) == (1, 3)
        assert mirror.load(store.listing()) is None, "a list shows the same"

    def test_a_rise_that_was_missed_comes_with_the_list(self) -> None:
        store, mirror = started()
        store.write(Put(CLUSTER.key, records.encode(replace(ONE, feature_level=1))))
        delta = mirror.load(store.listing())
        assert delta is not None
        assert delta.feature_level == 1

    def test_a_level_above_what_this_controller_knows_is_refused_seen_or_listed(self) -> None:
        store, mirror = started()
        batch = store.write(Put(CLUSTER.key, records.encode(replace(ONE, feature_level=HIGHEST + 1))))
        with pytest.raises(UnsupportedVersion, match=f"up to {HIGHEST}, the cluster is at level {HIGHEST + 1}"):
            mirror.apply(batch)
        with pytest.raises(UnsupportedVersion, match="start the newer version again"):
            Mirror().load(store.listing())


nodes = st.builds(
    Node,
    key=st.builds(NodeKey, st.sampled_from(Role), st.integers(0, 3).map(NodeId)),
    grpc=st.just(Endpoint("127.0.0.1", 9)),
    incarnation=st.binary(min_size=16, max_size=16),
    epoch=st.integers(0, 9),
    http=st.one_of(st.none(), st.just(Endpoint("::1", 80))),
    rack=st.one_of(st.none(), st.text(max_size=3)),
    fenced=st.booleans(),
    in_controlled_shutdown=st.booleans(),
    drained=st.booleans(),
    version=st.text(max_size=3),
    feature_level_max=st.integers(0, 3),
)
_IDS = [TopicId(bytes([n]) * 16) for n in range(3)]
topic_ids = st.sampled_from(_IDS)
names = st.sampled_from(["a", "b"])
members = st.lists(st.integers(0, 5).map(NodeId), unique=True, max_size=3).map(tuple)
any_partition = st.builds(
    Partition,
    id=st.builds(PartitionId, topic_ids, st.integers(0, 3)),
    replicas=members,
    isr=members,
    leader=st.sampled_from([NO_NODE, NodeId(1)]),
    leader_epoch=st.integers(0, 2**31 - 1),
    partition_epoch=st.integers(0, 2**31 - 1),
    elr=members,
    last_known_elr=members,
    recovering=st.booleans(),
    adding=members,
    removing=members,
)
texts = st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=2)
any_topic = st.builds(
    lambda id, *rest: Topic("b" if id == _IDS[2] else "a", id, *rest),  # an id never changes its name
    topic_ids,
    st.integers(1, 4),
    texts,
    st.booleans(),
)
any_configs = st.builds(Configs, st.one_of(st.none(), st.integers(0, 3).map(NodeId)), texts)
any_deletion = st.builds(TopicDeletion, topic_ids, names, members)
any_removal = st.builds(ReplicaRemoval, st.builds(PartitionId, topic_ids, st.integers(0, 3)), members)
any_shard = st.builds(
    Shard,
    key=st.builds(ShardKey, st.sampled_from(ShardKind), st.integers(0, 3)),
    owner=st.sampled_from([NO_NODE, NodeId(1), NodeId(2)]),
    epoch=st.integers(1, 2**31 - 1),
)
any_access_row = st.builds(
    AccessRow,
    st.sampled_from(["state", "grants/User:a", "grants/User:b", "keys/0123456789abcd"]),
    st.binary(min_size=1, max_size=3),
)
any_record = st.one_of(
    *(nodes, any_topic, any_partition, any_configs, any_deletion, any_removal, any_shard, any_access_row)
)


def key_of(record: records.Record) -> str:
    match record:
        case Node():
            return records.node_key(record.key)
        case Topic():
            return records.topic_key(record.name)
        case Partition():
            return records.partition_key(record.id)
        case TopicDeletion():
            return records.deletion_key(record.topic_id)
        case ReplicaRemoval():
            return records.removal_key(record.id)
        case Shard():
            return records.shard_key(record.key)
        case Configs():
            return records.configs_key(record.broker)
        case AccessRow():
            return records.access_key(record.key)
        case ActiveController():
            return records.CONTROLLER_KEY
        case _:
            return records.CLUSTER_KEY


@given(any_record)
def test_every_record_survives_the_store(record: records.Record) -> None:
    assert records.decode(key_of(record), records.encode(record)) == record


def test_a_node_of_a_version_before_drains_is_not_drained() -> None:
    node = Node(NodeKey(Role.BROKER, NodeId(1)), Endpoint("127.0.0.1", 9), b"i" * 16, 3, drained=True)
    old = records.encode(node).replace(b',"drained":true', b"")
    assert records.decode(records.node_key(node.key), old) == replace(node, drained=False)


puts = any_record.map(lambda r: Put(key_of(r), records.encode(r)))
rises = st.integers(0, HIGHEST).map(lambda level: Put(CLUSTER.key, records.encode(replace(ONE, feature_level=level))))
counters = st.sampled_from([Put(records.PRODUCER_KEY, b"7"), Put(records.EPOCH_KEY, b"3")])
writes = st.lists(st.one_of(puts, puts, counters, rises), min_size=1, max_size=4, unique_by=lambda p: p.key)


def removal(store: Store, visible: set[str], pick: int) -> list[Operation]:
    """One key less; a partition only while it is hidden, as the controller does it, and never a shard."""
    kept = {records.CLUSTER_KEY, *visible, *(k for k in store.items if k.startswith(records.SHARDS_PREFIX))}
    keys = sorted(k for k in store.items if k not in kept)
    if not keys:
        return [Put(records.REMOVAL_KEY, b"0")]
    return [Delete(keys[pick % len(keys)]), Put(records.REMOVAL_KEY, b"0")]


@settings(max_examples=150)
@given(st.lists(st.one_of(writes, st.integers(0, 99)), max_size=12), st.sets(st.integers(0, 11)))
def test_watching_and_listing_give_the_same_image_and_followers_keep_up(
    steps: list[list[Put] | int], relists: set[int]
) -> None:
    store, mirror = started()
    follower = EMPTY_IMAGE.apply(mirror.image.snapshot())
    for number, step in enumerate(steps):
        operations = (
            removal(store, {records.partition_key(i) for i in mirror.image.partitions}, step)
            if isinstance(step, int)
            else step
        )
        if any(shrinks(store, o) for o in operations):
            continue
        batch = store.write(*operations)
        delta = mirror.load(store.listing()) if number in relists else mirror.apply(batch)
        if delta is not None:
            follower = follower.apply(delta)
        fresh = Mirror()
        fresh.load(store.listing())
        assert same(mirror.image, fresh.image)
        assert mirror.image.revision == fresh.image.revision
        assert set(mirror.hidden) == set(fresh.hidden)
        assert same(follower, mirror.image)


def shrinks(store: Store, operation: Operation) -> bool:
    """Whether a topic would lose partitions, which the controller never does."""
    topic = records.decode(operation.key, operation.value) if isinstance(operation, Put) else None
    if not isinstance(topic, Topic):
        return False
    old = store.items.get(records.topic_key(topic.name))
    before = None if old is None else records.decode(old.key, old.value)
    return (
        isinstance(before, Topic)
        and before.topic_id == topic.topic_id
        and (before.partition_count > topic.partition_count)
    )


def same(one: ClusterImage, other: ClusterImage) -> bool:
    strip = (
        *("nodes", "topics", "partitions", "deletions", "removals", "shards"),
        *("cluster_configs", "broker_configs", "topic_ids", "feature_level", "access"),
    )
    for name in strip:
        left, right = getattr(one, name), getattr(other, name)
        if name == "broker_configs":
            left, right = {k: v for k, v in left.items() if v}, {k: v for k, v in right.items() if v}
        if left != right:
            return False
    return True


def test_a_slow_step_is_not_applied_twice() -> None:
    store, mirror = started()
    delta = mirror.apply(store.write(put_partition(0), put_topic(1)))
    assert isinstance(delta, ImageDelta)
    assert delta.previous_revision is not None
    assert delta.revision > delta.previous_revision
