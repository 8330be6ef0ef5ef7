"""
What a restore writes: the rows of a backup, without all that may have changed since and must not be believed.

Nobody leads, nobody is in sync, nobody lives, nobody is logged in; what moved has stopped; counters go on far above.
Fields that this version does not know are kept. Pure; called by the program ``restore``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from headrace_common.core.access.rows import KEYS, Reader
from headrace_common.core.errors import Rejected
from headrace_common.core.features import HIGHEST, too_old
from headrace_common.core.ids import NO_NODE, NodeId
from headrace_controller.core import records
from headrace_controller.core.backup_file import Backup, Row
from headrace_controller.core.records import Cluster
from headrace_controller.core.restore_record import (
    RESTORE_KEY,
    RESTORING_KEY,
    Restore,
    decode_restore,
    encode_restore,
)

PRODUCER_IDS_GAP: Final = 1 << 32
"""Producer ids that may have been given after the backup."""
EPOCHS_GAP: Final = 1 << 20
"""Registrations and elections that may have happened after the backup."""

_KEYS: Final = records.access_key(KEYS)
_LEFT_OUT: Final = frozenset(
    {
        records.CONTROLLER_KEY,
        records.CLUSTER_KEY,
        records.FORMAT_KEY,
        records.EPOCH_KEY,
        records.PRODUCER_KEY,
        records.REMOVAL_KEY,
        RESTORE_KEY,
        RESTORING_KEY,
    }
)


@dataclass(frozen=True, slots=True)
class Restored:
    """What is to be written."""

    rows: tuple[Row, ...]
    """In any order, in any number of steps."""
    last: tuple[Row, ...]
    """At once, after all others: they make it a cluster."""
    restore: Restore


def restore_metadata(backup: Backup, expected: Sequence[NodeId], now_ms: int, incarnation: bytes) -> Restored:
    """
    The metadata of ``backup`` as it is to be, for brokers that have gone on since.

    Args:
        expected: brokers whose logs have to be seen before anybody leads: all that may hold records.
        now_ms: the wall clock.
        incarnation: a new one, 16 bytes.

    Raises:
        Rejected: the backup holds no cluster, or no broker is named, or one twice.
        UnsupportedVersion: it was made by a newer version.
    """
    if not expected or len(set(expected)) != len(expected) or min(expected) < 0:
        raise Rejected("name every broker that may hold logs, each once, such as --brokers 0,1,2")
    found = {row.key: row.value for row in backup.rows}
    cluster = _cluster(found)
    epoch = _number(found, records.EPOCH_KEY, 0) + EPOCHS_GAP
    producer = _number(found, records.PRODUCER_KEY, records.PRODUCER_FIRST) + PRODUCER_IDS_GAP
    counted = _topics(found)
    rows = [
        Row(records.EPOCH_KEY, records.encode_number(epoch)),
        Row(records.PRODUCER_KEY, records.encode_number(producer)),
    ]
    for row in backup.rows:
        value = _row(row, counted)
        if value is not None:
            rows.append(Row(row.key, value))
    lineage, known_revision = _lineage(found, cluster.incarnation, backup.revision)
    restore = Restore(
        backup_revision=backup.revision,
        backup_time_ms=backup.time_ms,
        restore_time_ms=now_ms,
        expected=tuple(sorted(expected)),
        epoch_floor=epoch,
        lineage=lineage,
        known_revision=known_revision,
    )
    last = (
        Row(RESTORE_KEY, encode_restore(restore)),
        Row(records.FORMAT_KEY, found[records.FORMAT_KEY]),
        Row(records.CLUSTER_KEY, records.encode(replace(cluster, incarnation=incarnation))),
    )
    return Restored(tuple(rows), last, restore)


def _cluster(found: Mapping[str, bytes]) -> Cluster:
    if records.CLUSTER_KEY not in found or records.FORMAT_KEY not in found:
        raise Rejected("the backup holds no cluster; take another one")
    records.check_format(found[records.FORMAT_KEY])
    for key, value in found.items():
        records.decode(key, value)  # refuses what a newer version wrote, before anything is changed
    cluster = records.decode(records.CLUSTER_KEY, found[records.CLUSTER_KEY])
    assert isinstance(cluster, Cluster), "that is what the key holds"
    if cluster.feature_level > HIGHEST:
        raise too_old("this program", HIGHEST, cluster.feature_level)
    return cluster


def _lineage(found: Mapping[str, bytes], own: bytes, revision: int) -> tuple[tuple[bytes, ...], int]:
    """
    Whose facts the backup has, and up to which revision.

    One that was made while a restore was unfinished knows nothing that the backup of that one did not know.
    """
    if RESTORE_KEY not in found:
        return (own,), revision
    earlier = decode_restore(found[RESTORE_KEY])
    if earlier.finished:
        return (*earlier.lineage, own), revision
    return (*earlier.lineage[:-1], own, earlier.lineage[-1]), earlier.known_revision


def _topics(found: Mapping[str, bytes]) -> dict[str, int]:
    """How many partitions each topic counts, by the topic's id in hex."""
    topics = (json.loads(value) for key, value in found.items() if key.startswith(records.TOPICS_PREFIX))
    return {topic["topic_id"]: topic["partitions"] for topic in topics}


def _number(found: Mapping[str, bytes], key: str, default: int) -> int:
    return records.decode_number(found[key]) if key in found else default


def _row(row: Row, counted: Mapping[str, int]) -> bytes | None:
    """The value to write; None: the key is left out."""
    if row.key in _LEFT_OUT or row.key.startswith(records.REMOVALS_PREFIX) or is_login(row):
        return None
    kind, _, rest = row.key.partition("/")
    if kind == "partitions":
        topic_id, _, number = rest.partition("/")
        if int(number) >= counted.get(topic_id, 0):
            return None  # its topic was being made, or deleted
    change = _CHANGES.get(kind)
    if change is None:
        return row.value
    fields: dict[str, Any] = json.loads(row.value)
    change(fields)
    return json.dumps(fields, separators=(",", ":")).encode()


def is_login(row: Row) -> bool:
    """
    Whether it is the key of somebody who has logged in. It may have been deleted since, and whoever has it can log in
    again. One that this version cannot read is a key like any other.
    """
    if not row.key.startswith(_KEYS):
        return False
    return any(
        key.login for key in Reader().read({row.key.removeprefix(records.ACCESS_PREFIX): row.value}).keys.values()
    )


def _fence(fields: dict[str, Any]) -> None:
    """Sessions that it has signed are over, too."""
    fields.update(fenced=True, in_controlled_shutdown=False)
    fields.pop("session_key", None)


def _forget_who_leads(fields: dict[str, Any]) -> None:
    """Of a move only its target stays, as what the partition is to have; where its logs are, brokers will say."""
    target = [b for b in fields["replicas"] if b not in fields["removing"]]
    fields.update(
        replicas=target or fields["replicas"],
        isr=[],
        elr=[],
        last_known_elr=[],
        adding=[],
        removing=[],
        leader=NO_NODE,
        partition_epoch=fields["partition_epoch"] + 1,
    )


def _disown(fields: dict[str, Any]) -> None:
    fields.update(owner=NO_NODE)


_CHANGES: Final[Mapping[str, Callable[[dict[str, Any]], None]]] = {
    "nodes": _fence,
    "partitions": _forget_who_leads,
    "shards": _disown,
}
