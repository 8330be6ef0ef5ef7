"""
A controller's copy of the metadata store, and the cluster image that follows from it.

The store is written in small steps: partitions before their topic, chunk by chunk. The mirror keeps all of it, but
only what is complete becomes visible in the image: a partition shows once its topic counts it. Called by the
follower, which feeds it lists and watches; read by everyone.

The image's revision is the newest revision of anything visible, so that two controllers that mirror the same store
give the same number to the same image, whether they listed or watched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from headrace_common.core.access.rows import GONE
from headrace_common.core.features import HIGHEST, too_old
from headrace_common.core.ids import NO_NODE, NodeId, PartitionId, TopicId
from headrace_common.core.image import (
    EMPTY_IMAGE,
    ActiveController,
    ClusterImage,
    ImageDelta,
    Node,
    NodeKey,
    Partition,
    ReplicaRemoval,
    Shard,
    ShardKey,
    Topic,
    TopicDeletion,
)
from headrace_controller.core import records
from headrace_controller.core.records import AccessRow, Cluster, Configs
from headrace_controller.core.restore_record import RESTORE_KEY, RESTORING_KEY, Restore, decode_restore
from headrace_controller.core.store import Change, Changes, KeyValue, Listing

K = TypeVar("K")
V = TypeVar("V")

NOBODY = ActiveController(NO_NODE, 0, None)

_DECODED = (Partition, Topic, Node, Shard, AccessRow)
"""Records that are kept decoded alone, since there are many of them."""


@dataclass(slots=True)
class _Touched:
    """What a batch of changes touched, before it is decided what of it is visible."""

    nodes: dict[NodeKey, Node | None] = field(default_factory=dict)
    topics: dict[str, Topic | None] = field(default_factory=dict)
    partitions: dict[PartitionId, Partition] = field(default_factory=dict)
    deletions: dict[TopicId, TopicDeletion | None] = field(default_factory=dict)
    removals: dict[PartitionId, ReplicaRemoval | None] = field(default_factory=dict)
    shards: dict[ShardKey, Shard] = field(default_factory=dict)
    access: dict[str, bytes] = field(default_factory=dict)
    feature_level: int | None = None
    cluster_configs: Configs | None = None
    broker_configs: dict[NodeId, Configs] = field(default_factory=dict)
    active: ActiveController | None = None
    revision: int = 0
    """Newest revision of anything visible by itself."""


class Mirror:
    """
    Everything under the prefix, decoded. One task writes it; reads see a whole revision.

    ``feature_level_max`` is the highest feature level that this controller knows: metadata above it is refused.
    """

    def __init__(self, feature_level_max: int = HIGHEST) -> None:
        self.feature_level_max = feature_level_max
        self.image: ClusterImage = EMPTY_IMAGE
        self.revision = 0
        """Newest store revision seen, of anything."""
        self.hidden: dict[PartitionId, int] = {}
        """Partitions that no topic counts, with their mod revision: in creation, or orphans."""
        self.raw: dict[str, KeyValue] = {}
        """Keys and revisions; values only of counters, the election and other small single records."""
        self.restore: Restore | None = None
        """The last restore of this metadata; None: there was none."""
        self._partitions: dict[TopicId, dict[int, Partition]] = {}

    @property
    def loaded(self) -> bool:
        """Whether a cluster was found in the store."""
        return bool(self.image.cluster_id)

    @property
    def half_restored(self) -> bool:
        """Whether a restore is being written, or was left unfinished: the store holds no cluster."""
        return RESTORING_KEY in self.raw

    @property
    def waits_for_logs(self) -> bool:
        """Whether the metadata was restored and not all logs were seen: nobody may lead."""
        return self.restore is not None and not self.restore.finished

    def mod_revision(self, key: str) -> int:
        """When the key was last written; 0: it does not exist."""
        found = self.raw.get(key)
        return 0 if found is None else found.mod_revision

    def number(self, key: str, default: int) -> int:
        found = self.raw.get(key)
        return default if found is None else records.decode_number(found.value)

    def partition(self, id: PartitionId) -> Partition | None:
        """A partition, visible or not."""
        return self._partitions.get(id.topic_id, {}).get(id.partition)

    def apply(self, batch: Changes) -> ImageDelta | None:
        """
        Take in changes of the store; what became visible as a step of the image, or None when nothing did.

        Raises:
            UnsupportedVersion: a newer controller wrote a record that this one does not understand, or the cluster has
                risen to a feature level that it does not know.
        """
        assert batch.revision >= self.revision, "a watch goes forward"
        touched = _Touched()
        for change in batch.changes:
            self._take(change, touched)
        self.revision = batch.revision
        delta = self._visible(touched)
        if delta is not None:
            self.image = self.image.apply(delta)
        return delta if self.loaded and not self.half_restored else None

    def replaced_by(self, batch: Changes) -> bool:
        """Whether ``batch`` puts another cluster, or another incarnation of it, where this mirror's is: list anew."""
        for change in batch.changes:
            if change.key == records.CLUSTER_KEY and change.current is not None:
                cluster = records.decode(change.key, change.current.value)
                assert isinstance(cluster, Cluster), "that is what the key holds"
                return self.image.revision > 0 and cluster.incarnation != self.image.incarnation
        return False

    def load(self, listing: Listing) -> ImageDelta | None:
        """
        Replace everything by a fresh list; the difference as a step of the image, or None when there is none.

        Raises:
            UnsupportedVersion: the layout, a record or the feature level is newer than this version.
        """
        fresh = Mirror(self.feature_level_max)
        found_format = next((i.value for i in listing.items if i.key == records.FORMAT_KEY), None)
        if found_format is not None:
            records.check_format(found_format)
        changes = tuple(Change(i.key, i, i.mod_revision) for i in listing.items)
        fresh.apply(Changes(listing.revision, changes))
        before, same = self.image, fresh.image.incarnation == self.image.incarnation
        self.raw, self._partitions, self.hidden = fresh.raw, fresh._partitions, fresh.hidden
        self.restore = fresh.restore
        self.revision = listing.revision
        if not before.revision or not same:
            self.image = fresh.image
            return fresh.image.snapshot() if fresh.loaded else None
        delta = difference(before, fresh.image)
        if delta is None:
            return None
        if delta.revision == before.revision:  # all that changed is that the election's lease ran out
            delta = replace(delta, revision=max(listing.revision, before.revision))
        self.image = before.apply(delta)
        return delta

    def _take(self, change: Change, touched: _Touched) -> None:
        key, current = change.key, change.current
        if current is None:
            self.raw.pop(key, None)
            self._take_removal(key, change.revision, touched)
            return
        record = records.decode(key, current.value)
        self.raw[key] = replace(current, value=b"") if isinstance(record, _DECODED) else current
        if isinstance(record, Partition):
            self._partitions.setdefault(record.id.topic_id, {})[record.id.partition] = record
            self.hidden[record.id] = current.mod_revision
            touched.partitions[record.id] = record
            return
        if key == RESTORE_KEY:
            self.restore = decode_restore(current.value)
        if record is not None or key == records.REMOVAL_KEY:
            touched.revision = max(touched.revision, change.revision)
        match record:
            case Cluster(id, incarnation, level):
                if level > self.feature_level_max:
                    raise too_old("this controller", self.feature_level_max, level)
                self.image = replace(self.image, cluster_id=id, incarnation=incarnation)
                touched.feature_level = level
            case ActiveController():
                touched.active = record
            case Node():
                touched.nodes[record.key] = record
            case Topic():
                touched.topics[record.name] = record
            case TopicDeletion():
                touched.deletions[record.topic_id] = record
            case ReplicaRemoval():
                touched.removals[record.id] = record
            case Shard():
                touched.shards[record.key] = record
            case AccessRow(row_key, row):
                touched.access[row_key] = row
            case Configs(None, _):
                touched.cluster_configs = record
            case Configs(broker, _) if broker is not None:
                touched.broker_configs[broker] = record
            case _:
                pass

    def _take_removal(self, key: str, revision: int, touched: _Touched) -> None:
        kind, _, rest = key.partition("/")
        if kind == "partitions":
            id = records.partition_id_of(rest)
            held = self._partitions.get(id.topic_id, {})
            held.pop(id.partition, None)
            if not held:
                self._partitions.pop(id.topic_id, None)
            self.hidden.pop(id, None)
            touched.partitions.pop(id, None)
            return
        match kind:
            case "controller":
                touched.active = NOBODY
            case "nodes":
                touched.nodes[records.node_key_of(rest)] = None
            case "topics":
                touched.topics[rest] = None
            case "deletions":
                touched.deletions[TopicId(bytes.fromhex(rest))] = None
            case "removals":
                touched.removals[records.partition_id_of(rest)] = None
            case "access":
                touched.access[rest] = GONE
            case "configs":
                configs = records.decode(key, b'{"v":1,"values":{}}')
                assert isinstance(configs, Configs), "only known settings are kept"
                if configs.broker is None:
                    touched.cluster_configs = configs
                else:
                    touched.broker_configs[configs.broker] = configs
            case _:
                return
        touched.revision = max(touched.revision, revision)

    def _visible(self, touched: _Touched) -> ImageDelta | None:
        image = self.image
        revision = touched.revision
        topics: list[Topic] = []
        removed: list[TopicId] = []
        shown: dict[PartitionId, Partition] = {}
        now: dict[TopicId, Topic] = {}
        for name, topic in touched.topics.items():
            old = image.topic(name)
            if old is not None and (topic is None or topic.topic_id != old.topic_id):
                removed.append(old.topic_id)
                self._hide(old.topic_id)
            if topic is not None:
                topics.append(topic)
                now[topic.topic_id] = topic
                same = old is not None and old.topic_id == topic.topic_id
                shown.update(self._from(topic, old.partition_count if same and old is not None else 0))
        gone = frozenset(removed)
        for id, partition in touched.partitions.items():
            owner = now.get(id.topic_id) or image.topics.get(id.topic_id)
            if owner is not None and id.topic_id not in gone and id.partition < owner.partition_count:
                shown[id] = partition
                revision = max(revision, self.mod_revision(records.partition_key(id)))
        for id in shown:
            self.hidden.pop(id, None)
        if not revision:
            return None
        first = not image.revision
        configs = touched.cluster_configs
        return ImageDelta(
            incarnation=image.incarnation,
            previous_revision=None if first else image.revision,
            revision=max(revision, image.revision),
            cluster_id=image.cluster_id,
            nodes=tuple(n for n in touched.nodes.values() if n is not None),
            topics=tuple(topics),
            partitions=tuple(shown.values()),
            deletions=tuple(d for d in touched.deletions.values() if d is not None),
            removed_nodes=tuple(k for k, n in touched.nodes.items() if n is None),
            removed_topics=tuple(removed),
            finished_deletions=tuple(i for i, d in touched.deletions.items() if d is None),
            removals=tuple(r for r in touched.removals.values() if r is not None),
            finished_removals=tuple(i for i, r in touched.removals.items() if r is None),
            shards=tuple(touched.shards.values()),
            cluster_configs=None if configs is None else configs.values,
            broker_configs={b: c.values for b, c in touched.broker_configs.items()},
            active_controller=touched.active,
            feature_level=touched.feature_level,
            access=touched.access,
        )

    def _from(self, topic: Topic, start: int) -> dict[PartitionId, Partition]:
        held = self._partitions.get(topic.topic_id, {})
        return {held[n].id: held[n] for n in range(start, topic.partition_count) if n in held}

    def _hide(self, topic_id: TopicId) -> None:
        for partition in self._partitions.get(topic_id, {}).values():
            self.hidden[partition.id] = self.mod_revision(records.partition_key(partition.id))


def difference(old: ClusterImage, new: ClusterImage) -> ImageDelta | None:
    """The step from one image to a later one of the same incarnation; None when they hold the same."""
    removed_topics = tuple(i for i in old.topics if i not in new.topics)
    brokers = {*old.broker_configs, *new.broker_configs}
    active = new.active_controller or NOBODY
    delta = ImageDelta(
        incarnation=new.incarnation,
        previous_revision=old.revision,
        revision=max(old.revision, new.revision),
        cluster_id=new.cluster_id,
        nodes=_list_changed(old.nodes, new.nodes),
        topics=_list_changed(old.topics, new.topics),
        partitions=_list_changed(old.partitions, new.partitions),
        deletions=_list_changed(old.deletions, new.deletions),
        removed_nodes=tuple(k for k in old.nodes if k not in new.nodes),
        removed_topics=removed_topics,
        finished_deletions=tuple(i for i in old.deletions if i not in new.deletions),
        removals=_list_changed(old.removals, new.removals),
        finished_removals=tuple(i for i in old.removals if i not in new.removals),
        shards=_list_changed(old.shards, new.shards),
        cluster_configs=None if new.cluster_configs == old.cluster_configs else new.cluster_configs,
        broker_configs={
            b: new.broker_configs.get(b, {}) for b in brokers if new.broker_configs.get(b) != old.broker_configs.get(b)
        },
        active_controller=None if active == (old.active_controller or NOBODY) else active,
        feature_level=None if new.feature_level == old.feature_level else new.feature_level,
        access={
            key: new.access.get(key, GONE)
            for key in old.access.keys() | new.access.keys()
            if new.access.get(key) != old.access.get(key)
        },
    )
    empty = ImageDelta(delta.incarnation, delta.previous_revision, delta.revision, delta.cluster_id)
    return None if delta == empty and delta.revision == old.revision else delta


def _list_changed(old: Mapping[K, V], new: Mapping[K, V]) -> tuple[V, ...]:
    return tuple(v for k, v in new.items() if old.get(k) != v)
