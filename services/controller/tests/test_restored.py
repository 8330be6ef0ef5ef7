"""What a restore writes: all that the backup knows, and nothing of it that may have changed since."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_common.core.errors import Rejected, UnsupportedVersion
from headrace_common.core.features import HIGHEST
from headrace_common.core.ids import NO_NODE, Endpoint, NodeId, PartitionId, TopicId
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
from headrace_controller.core import records
from headrace_controller.core.backup_file import Backup, Row
from headrace_controller.core.records import Cluster, Configs
from headrace_controller.core.restore_record import RESTORE_KEY, RESTORING_KEY, decode_restore, encode_restore
from headrace_controller.core.restored import EPOCHS_GAP, PRODUCER_IDS_GAP, restore_metadata

OLD, NEW = b"o" * 16, b"n" * 16
KEY = (
    b'{"v":1,"owner":"User:a","digest":"' + b"ab" * 32 + b'","created_ms":1,"expires_ms":null,"scope":null,"note":""%s}'
)
T1, T2 = TopicId(b"1" * 16), TopicId(b"2" * 16)
BROKER = NodeKey(Role.BROKER, NodeId(1))


def ids(*numbers: int) -> tuple[NodeId, ...]:
    return tuple(map(NodeId, numbers))


def rows(**more: bytes) -> dict[str, bytes]:
    node = Node(
        BROKER, Endpoint("h", 1), b"i" * 16, 40, in_controlled_shutdown=True, drained=True, session_key=b"s" * 32
    )
    moving = Partition(PartitionId(T1, 0), ids(3, 1, 2), ids(1, 2), NodeId(1), 7, 9, ids(), ids(), True, ids(3), ids(2))
    return {
        "format": b"1",
        "cluster": records.encode(Cluster("id", OLD)),
        "controller": records.encode(ActiveController(NodeId(1), 41, Endpoint("h", 2))),
        "nodes/broker/1": records.encode(node),
        "topics/t": records.encode(Topic("t", T1, 1, {"a": "b"})),
        records.partition_key(PartitionId(T1, 0)): records.encode(moving),
        records.partition_key(PartitionId(T1, 1)): records.encode(moving),
        records.partition_key(PartitionId(T2, 0)): records.encode(moving),
        records.deletion_key(T2): records.encode(TopicDeletion(T2, "u", ids(1))),
        records.removal_key(PartitionId(T1, 0)): records.encode(ReplicaRemoval(PartitionId(T1, 0), ids(4))),
        "shards/groups/0": records.encode(Shard(ShardKey(ShardKind.GROUPS, 0), NodeId(5), 6)),
        "configs/cluster": records.encode(Configs(None, {"x": "y"})),
        "ids/epoch": b"41",
        "ids/producer": b"5000",
        "ids/leader_epoch": b"3",
        "removal": b"1",
        "access/state": b'{"v":1,"mode":"closed","generation":4}',
        "access/keys/0123456789abcd": b'{"v":9}',
        "access/keys/0123456789abce": KEY % b"",
        "access/keys/0123456789abcf": KEY % b',"login":"0123456789abcdef"',
        "later/thing": b"of another version",
        **more,
    }


def run(found: dict[str, bytes], expected: tuple[int, ...] = (2, 0, 1)) -> dict[str, bytes]:
    backup = Backup("c", 99, 1_000, tuple(Row(k, v) for k, v in found.items()))
    made = restore_metadata(backup, ids(*expected), 2_000, NEW)
    written = [*made.rows, *made.last]
    assert len({row.key for row in written}) == len(written), "each key once"
    assert [row.key for row in made.last] == ["restore", "format", "cluster"]
    return {row.key: row.value for row in written}


def test_nobody_leads_lives_or_moves() -> None:
    written = run(rows())
    partition = records.decode(records.partition_key(PartitionId(T1, 0)), written[f"partitions/{T1.hex()}/0"])
    assert partition == Partition(PartitionId(T1, 0), ids(3, 1), (), NO_NODE, 7, 10, recovering=True)
    node = records.decode("nodes/broker/1", written["nodes/broker/1"])
    assert isinstance(node, Node)
    assert (node.fenced, node.in_controlled_shutdown, node.drained, node.epoch) == (True, False, True, 40)
    assert not node.session_key, "sessions that it has signed are over"
    shard = records.decode("shards/groups/0", written["shards/groups/0"])
    assert shard == Shard(ShardKey(ShardKind.GROUPS, 0), NO_NODE, 6)


def test_what_was_not_complete_or_may_not_be_true_is_left_out() -> None:
    written = run(rows())
    gone = set(rows()) - set(written)
    hidden = {f"partitions/{T1.hex()}/1", f"partitions/{T2.hex()}/0"}
    login = "access/keys/0123456789abcf"  # it may have been deleted since
    assert gone == {login, "controller", "removal", f"removals/{T1.hex()}/0", *hidden}
    kept = {"topics/t", f"deletions/{T2.hex()}", "configs/cluster", "ids/leader_epoch", "later/thing", "format"}
    kept |= {"access/state", "access/keys/0123456789abcd", "access/keys/0123456789abce"}
    assert all(written[key] == rows()[key] for key in kept)


def test_counters_go_on_far_above() -> None:
    written = run(rows())
    assert int(written["ids/epoch"]) == 41 + EPOCHS_GAP
    assert int(written["ids/producer"]) == 5_000 + PRODUCER_IDS_GAP
    few = rows()
    del few["ids/epoch"], few["ids/producer"]
    assert int(run(few)["ids/producer"]) == 1_000 + PRODUCER_IDS_GAP


def test_a_new_incarnation_of_the_same_cluster() -> None:
    written = run(rows())
    assert records.decode("cluster", written["cluster"]) == Cluster("id", NEW)
    restore = decode_restore(written[RESTORE_KEY])
    assert (restore.expected, restore.backup_revision, restore.backup_time_ms) == (ids(0, 1, 2), 99, 1_000)
    assert (restore.epoch_floor, restore.lineage, restore.finished) == (41 + EPOCHS_GAP, (OLD,), False)
    finished = {**written, RESTORE_KEY: encode_restore(replace(restore, finished=True))}
    again = decode_restore(run(finished)[RESTORE_KEY])
    assert (again.lineage, again.known_revision) == ((OLD, NEW), 99)


def test_the_feature_level_is_carried() -> None:
    written = run(rows(cluster=records.encode(Cluster("id", OLD, HIGHEST))))
    assert records.decode("cluster", written["cluster"]) == Cluster("id", NEW, HIGHEST)


def test_a_backup_above_what_this_version_knows_is_refused() -> None:
    with pytest.raises(UnsupportedVersion, match=f"this program knows feature levels up to {HIGHEST}"):
        run(rows(cluster=records.encode(Cluster("id", OLD, HIGHEST + 1))))


def test_a_backup_of_an_unfinished_restore_knows_no_more_than_the_one_before() -> None:
    first = run(rows())
    restore = replace(decode_restore(first[RESTORE_KEY]), known_revision=7)
    again = decode_restore(run({**first, RESTORE_KEY: encode_restore(restore)})[RESTORE_KEY])
    assert (again.lineage, again.known_revision, again.backup_revision) == ((NEW, OLD), 7, 99)


def test_fields_of_later_versions_stay() -> None:
    found = rows()
    fields: dict[str, Any] = json.loads(found["nodes/broker/1"])
    found["nodes/broker/1"] = json.dumps({**fields, "later": [1]}).encode()
    assert json.loads(run(found)["nodes/broker/1"])["later"] == [1]


def test_what_cannot_be_restored_is_refused() -> None:
    for expected in ((), (1, 1), (-1,)):
        with pytest.raises(Rejected, match="--brokers"):
            run(rows(), expected)
    few = rows()
    del few["cluster"]
    with pytest.raises(Rejected, match="no cluster"):
        run(few)
    with pytest.raises(UnsupportedVersion, match="format 2"):
        run(rows(format=b"2"))
    newer = rows()
    newer["topics/t"] = newer["topics/t"].replace(b'"v":1', b'"v":2')
    with pytest.raises(UnsupportedVersion, match="topics/t"):
        run(newer)


@given(st.sets(st.sampled_from(sorted(rows())), max_size=6))
def test_half_written_keys_of_a_restore_never_come_back(missing: set[str]) -> None:
    found = {k: v for k, v in rows(**{RESTORING_KEY: b"{}"}).items() if k not in missing - {"cluster", "format"}}
    assert RESTORING_KEY not in run(found)
