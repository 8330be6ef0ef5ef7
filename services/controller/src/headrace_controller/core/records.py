"""
The form of every key and value in the metadata store. Called by the mirror (read) and the engine (write).

Values are compact JSON, so that ``etcdctl get --prefix /headrace`` reads well; each object has ``v``, the version of
its record. The key ``format`` holds the version of the whole layout: a newer one is refused before anything is
written. Keys that this version does not know are left alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from headrace_common.core.errors import UnsupportedVersion
from headrace_common.core.ids import Endpoint, NodeId, PartitionId, TopicId
from headrace_common.core.image import (
    ActiveController,
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
from headrace_controller.core.store import Delete, Operation, Put

FORMAT: Final = 1
RECORD_VERSION: Final = 1
LEVELLED_VERSION: Final = 2
"""Of the cluster's record from feature level 1 on: a controller from before there were levels refuses the metadata and
ends, whether it starts or stands by."""

FORMAT_KEY: Final = "format"
CLUSTER_KEY: Final = "cluster"
CONTROLLER_KEY: Final = "controller"
EPOCH_KEY: Final = "ids/epoch"
PRODUCER_KEY: Final = "ids/producer"
PRODUCER_FIRST: Final = 1_000
"""The first producer id ever given; 0 on the wire means none."""
LEADER_EPOCH_KEY: Final = "ids/leader_epoch"
"""Highest leader epoch in a broker's logs that was above all in the metadata; absent until there was a restore."""
REMOVAL_KEY: Final = "removal"
"""Written whenever something visible is only removed, so that the newest revision can always be read from a list."""
CLUSTER_CONFIGS_KEY: Final = "configs/cluster"
BROKER_CONFIGS_PREFIX: Final = "configs/brokers/"
NODES_PREFIX: Final = "nodes/"
TOPICS_PREFIX: Final = "topics/"
PARTITIONS_PREFIX: Final = "partitions/"
DELETIONS_PREFIX: Final = "deletions/"
REMOVALS_PREFIX: Final = "removals/"
SHARDS_PREFIX: Final = "shards/"
ACCESS_PREFIX: Final = "access/"
_SHARD_KINDS: Final = frozenset(kind.value for kind in ShardKind)


@dataclass(frozen=True, slots=True)
class Cluster:
    """The identity of the metadata: created once; a restore changes the incarnation."""

    id: str
    incarnation: bytes
    feature_level: int = 0


@dataclass(frozen=True, slots=True)
class Configs:
    """Dynamic settings of all brokers (``broker`` None) or of one."""

    broker: NodeId | None
    values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class AccessRow:
    """A row that says who may do what, as ``headrace_common.core.access.rows`` writes it; nobody reads it here."""

    key: str
    """As in the image: without ``access/``."""
    row: bytes


Record = (
    Cluster | ActiveController | Node | Topic | Partition | TopicDeletion | ReplicaRemoval | Shard | Configs | AccessRow
)


def node_key(key: NodeKey) -> str:
    return f"{NODES_PREFIX}{key.role.value}/{key.id}"


def topic_key(name: str) -> str:
    return TOPICS_PREFIX + name


def partitions_prefix(topic_id: TopicId) -> str:
    """What the keys of all partitions of a topic start with."""
    return f"{PARTITIONS_PREFIX}{topic_id.hex()}/"


def partition_key(partition: PartitionId) -> str:
    return f"{PARTITIONS_PREFIX}{partition.topic_id.hex()}/{partition.partition}"


def deletion_key(topic_id: TopicId) -> str:
    """Where the order to delete a topic's logs is kept."""
    return DELETIONS_PREFIX + topic_id.hex()


def removals_prefix(topic_id: TopicId) -> str:
    """What the keys of all orders to delete single logs of a topic start with."""
    return f"{REMOVALS_PREFIX}{topic_id.hex()}/"


def removal_key(partition: PartitionId) -> str:
    """Where the order to delete logs of one partition is kept."""
    return f"{REMOVALS_PREFIX}{partition.topic_id.hex()}/{partition.partition}"


def shard_key(shard: ShardKey) -> str:
    """Where the owner of a shard is kept; never deleted, its epoch must not begin anew."""
    return f"{SHARDS_PREFIX}{shard.kind.value}/{shard.number}"


def configs_key(broker: NodeId | None) -> str:
    """Where dynamic settings are kept."""
    return CLUSTER_CONFIGS_KEY if broker is None else f"{BROKER_CONFIGS_PREFIX}{broker}"


def access_key(row: str) -> str:
    """Where a row of access is kept."""
    return ACCESS_PREFIX + row


def access_operations(rows: Mapping[str, bytes]) -> tuple[Operation, ...]:
    """What writes these rows; empty ones are deleted."""
    keyed = ((access_key(name), row) for name, row in rows.items())
    return tuple(Put(key, row) if row else Delete(key) for key, row in keyed)


def encode(record: Record) -> bytes:
    """The value of a record."""
    match record:
        case Cluster(id, incarnation, 0):
            return _dump({"id": id, "incarnation": incarnation.hex()})
        case Cluster(id, incarnation, level):
            fields = {"id": id, "incarnation": incarnation.hex(), "feature_level": level}
            return _dump(fields, LEVELLED_VERSION)
        case ActiveController(id, epoch, grpc):
            return _dump({"id": id, "epoch": epoch, "grpc": _address(grpc)})
        case Node():
            return _dump(_node_fields(record))
        case Topic(_, topic_id, count, configs, internal):
            settings = dict(sorted(configs.items()))
            return _dump({"topic_id": topic_id.hex(), "partitions": count, "configs": settings, "internal": internal})
        case Partition():
            return _dump(_partition_fields(record))
        case TopicDeletion(_, name, pending):
            return _dump({"name": name, "pending": pending})
        case ReplicaRemoval(_, pending):
            return _dump({"pending": pending})
        case Shard(_, owner, epoch):
            return _dump({"owner": owner, "epoch": epoch})
        case Configs(_, values):
            return _dump({"values": dict(sorted(values.items()))})
        case AccessRow(_, row):
            return row


def encode_number(number: int) -> bytes:
    """The value of a counter or of the format."""
    return str(number).encode()


def decode_number(value: bytes) -> int:
    return int(value)


def check_format(value: bytes) -> None:
    """
    Refuse a layout that this version does not know.

    Raises:
        UnsupportedVersion: with both numbers.
    """
    found = decode_number(value)
    if found != FORMAT:
        raise UnsupportedVersion(
            f"the metadata has format {found}, this controller knows format {FORMAT}; run a version that knows {found}"
        )


def decode(key: str, value: bytes) -> Record | None:
    """
    The record under ``key``; None for keys that hold none (counters, or what a later version adds).

    Raises:
        UnsupportedVersion: a record of a newer version.
    """
    kind, _, rest = key.partition("/")
    match kind:
        case "cluster":
            fields = _load(key, value, LEVELLED_VERSION)
            return Cluster(fields["id"], bytes.fromhex(fields["incarnation"]), fields.get("feature_level", 0))
        case "controller":
            fields = _load(key, value)
            return ActiveController(NodeId(fields["id"]), fields["epoch"], _endpoint(fields["grpc"]))
        case "nodes":
            return _node(rest, _load(key, value))
        case "topics":
            return _topic(rest, _load(key, value))
        case "partitions":
            return _partition(partition_id_of(rest), _load(key, value))
        case "deletions":
            fields = _load(key, value)
            return TopicDeletion(TopicId(bytes.fromhex(rest)), fields["name"], _ids(fields["pending"]))
        case "removals":
            return ReplicaRemoval(partition_id_of(rest), _ids(_load(key, value)["pending"]))
        case "shards":
            return _shard(rest, key, value)
        case "configs":
            return _configs(rest, _load(key, value))
        case "access":
            return AccessRow(rest, value)
        case _:
            return None


def partition_id_of(rest: str) -> PartitionId:
    """The partition of ``<topic id>/<n>``."""
    topic_id, _, number = rest.partition("/")
    return PartitionId(TopicId(bytes.fromhex(topic_id)), int(number))


def node_key_of(rest: str) -> NodeKey:
    role, _, number = rest.partition("/")
    return NodeKey(Role(role), NodeId(int(number)))


def _node_fields(node: Node) -> dict[str, Any]:
    return {
        "grpc": _address(node.grpc),
        "http": _address(node.http),
        "metrics": _address(node.metrics),
        "rack": node.rack,
        "incarnation": node.incarnation.hex(),
        "epoch": node.epoch,
        "fenced": node.fenced,
        "in_controlled_shutdown": node.in_controlled_shutdown,
        "version": node.version,
        "drained": node.drained,
        "external": _address(node.external),
        "feature_level_max": node.feature_level_max,
        "internal": _address(node.internal),
        "server_name": node.grpc.server_name,
        **({"session_key": node.session_key.hex()} if node.session_key else {}),
        **({"mtls": _address(node.mtls)} if node.mtls else {}),
    }


def _partition_fields(partition: Partition) -> dict[str, Any]:
    return {
        "replicas": partition.replicas,
        "isr": partition.isr,
        "elr": partition.elr,
        "last_known_elr": partition.last_known_elr,
        "recovering": partition.recovering,
        "adding": partition.adding,
        "removing": partition.removing,
        "leader": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "partition_epoch": partition.partition_epoch,
    }


def _node(rest: str, fields: dict[str, Any]) -> Node:
    server_name = fields.get("server_name", "")  # what one before TLS wrote has none
    grpc = _endpoint(fields["grpc"], server_name)
    assert grpc is not None, "a node is registered with its address"
    return Node(
        key=node_key_of(rest),
        grpc=grpc,
        http=_endpoint(fields["http"]),
        metrics=_endpoint(fields["metrics"]),
        rack=fields["rack"],
        incarnation=bytes.fromhex(fields["incarnation"]),
        epoch=fields["epoch"],
        fenced=fields["fenced"],
        in_controlled_shutdown=fields["in_controlled_shutdown"],
        version=fields["version"],
        drained=fields.get("drained", False),  # what a version before drains wrote has none
        external=_endpoint(fields.get("external")),  # nor what one before external listeners wrote
        feature_level_max=fields.get("feature_level_max", 0),  # nor what one before feature levels wrote
        internal=_endpoint(fields.get("internal")),  # nor what one before internal listeners wrote
        session_key=bytes.fromhex(fields.get("session_key", "")),  # who signs nothing has none
        mtls=_endpoint(fields.get("mtls"), server_name),  # nor who has no such listener
    )


def _topic(name: str, fields: dict[str, Any]) -> Topic:
    topic_id = TopicId(bytes.fromhex(fields["topic_id"]))
    return Topic(name, topic_id, fields["partitions"], fields["configs"], fields["internal"])


def _partition(id: PartitionId, fields: dict[str, Any]) -> Partition:
    return Partition(
        id=id,
        replicas=_ids(fields["replicas"]),
        isr=_ids(fields["isr"]),
        elr=_ids(fields["elr"]),
        last_known_elr=_ids(fields["last_known_elr"]),
        recovering=fields["recovering"],
        adding=_ids(fields["adding"]),
        removing=_ids(fields["removing"]),
        leader=NodeId(fields["leader"]),
        leader_epoch=fields["leader_epoch"],
        partition_epoch=fields["partition_epoch"],
    )


def _shard(rest: str, key: str, value: bytes) -> Shard | None:
    kind, _, number = rest.partition("/")
    if kind not in _SHARD_KINDS:
        return None  # of a later version
    fields = _load(key, value)
    return Shard(ShardKey(ShardKind(kind), int(number)), NodeId(fields["owner"]), fields["epoch"])


def _configs(rest: str, fields: dict[str, Any]) -> Configs | None:
    if rest == "cluster":
        return Configs(None, fields["values"])
    kind, _, number = rest.partition("/")
    return Configs(NodeId(int(number)), fields["values"]) if kind == "brokers" else None


def _dump(fields: dict[str, Any], version: int = RECORD_VERSION) -> bytes:
    return json.dumps({"v": version, **fields}, separators=(",", ":")).encode()


def _load(key: str, value: bytes, newest: int = RECORD_VERSION) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(value)
    if not RECORD_VERSION <= fields["v"] <= newest:
        raise UnsupportedVersion(
            f"{key} has record version {fields['v']}, this controller knows {newest}; run a newer version"
        )
    return fields


def _ids(numbers: list[int]) -> tuple[NodeId, ...]:
    return cast("tuple[NodeId, ...]", tuple(numbers))  # a NodeId is an int; this runs for every partition


def _address(endpoint: Endpoint | None) -> str | None:
    return None if endpoint is None else str(endpoint)


def _endpoint(address: str | None, server_name: str = "") -> Endpoint | None:
    return None if address is None else replace(Endpoint.parse(address), server_name=server_name)
