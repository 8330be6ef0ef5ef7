"""
What the metadata says of its own restore from a backup: two keys beside the records of the cluster.

``restoring`` is there while a restore is being written; nobody is elected and no cluster is made meanwhile.
``restore`` stays for good: which backup, whose logs have to be seen, and whether that is done. While it is not, nobody
leads any partition. Read by the mirror; written by the program ``restore`` and by the active controller.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from headrace_common.core.errors import UnsupportedVersion
from headrace_common.core.ids import NodeId
from headrace_common.core.image import ClusterImage, NodeKey, Role

RESTORE_KEY: Final = "restore"
RESTORING_KEY: Final = "restoring"
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Restore:
    """The last restore of this metadata."""

    backup_revision: int
    """In the store that the backup was made from."""
    backup_time_ms: int
    restore_time_ms: int
    expected: tuple[NodeId, ...]
    """Brokers whose logs have to be seen before anybody leads, ascending."""
    epoch_floor: int
    """Highest node epoch that may have been given before; who is registered above it has joined since."""
    lineage: tuple[bytes, ...]
    """Incarnations of the metadata before this one, by the age of what they knew; the last is the one whose facts the
    backup has."""
    known_revision: int
    """Up to which revision of that incarnation: what is noted of a later one, the backup does not know."""
    finished: bool = False
    adopted_topics: int = 0
    """Topics made since the backup, taken over from the brokers' notes and logs."""
    empty_topics: int = 0
    """Topics that no broker had a log of."""

    def list_missing(self, image: ClusterImage) -> list[NodeId]:
        """Brokers that are expected and have not joined since the restore, or are away again."""
        return [b for b in self.expected if not self.has_joined(image, b)]

    def has_joined(self, image: ClusterImage, broker: NodeId) -> bool:
        """Whether a process of this broker has registered since the restore, and lives."""
        node = image.nodes.get(NodeKey(Role.BROKER, broker))
        return node is not None and node.epoch > self.epoch_floor and not node.fenced


def encode_restore(restore: Restore) -> bytes:
    fields = {
        "v": _VERSION,
        "backup_revision": restore.backup_revision,
        "backup_time_ms": restore.backup_time_ms,
        "restore_time_ms": restore.restore_time_ms,
        "expected": restore.expected,
        "epoch_floor": restore.epoch_floor,
        "known_revision": restore.known_revision,
        "lineage": [i.hex() for i in restore.lineage],
        "finished": restore.finished,
        "adopted_topics": restore.adopted_topics,
        "empty_topics": restore.empty_topics,
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_restore(value: bytes) -> Restore:
    """
    What ``encode_restore`` wrote.

    Raises:
        UnsupportedVersion: a record of a newer version.
    """
    fields: dict[str, Any] = json.loads(value)
    if fields["v"] != _VERSION:
        raise UnsupportedVersion(
            f"{RESTORE_KEY} has record version {fields['v']}, this controller knows {_VERSION}; run a newer version"
        )
    return Restore(
        backup_revision=fields["backup_revision"],
        backup_time_ms=fields["backup_time_ms"],
        restore_time_ms=fields["restore_time_ms"],
        expected=tuple(NodeId(b) for b in fields["expected"]),
        epoch_floor=fields["epoch_floor"],
        known_revision=fields["known_revision"],
        lineage=tuple(bytes.fromhex(i) for i in fields["lineage"]),
        finished=fields["finished"],
        adopted_topics=fields["adopted_topics"],
        empty_topics=fields["empty_topics"],
    )
