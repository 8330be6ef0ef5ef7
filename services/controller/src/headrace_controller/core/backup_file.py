"""
The form of a backup of the metadata: every key at one revision, in one file that can be checked by itself.

Text, so that it can be looked at: a line with the version, a line of facts, a line for each row, and the SHA-256 of
all lines before. Keys and values are JSON strings; a value's bytes are taken as Latin-1, which keeps what is written
as JSON readable. Called by the programs ``backup`` and ``restore``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from headrace_common.core.errors import DataLost, HeadraceError, UnsupportedVersion
from headrace_controller.core import records

VERSION: Final = 1
SUFFIX: Final = ".backup"
_MAGIC: Final = b"headrace-backup "
_DIGEST: Final = b"sha256 "
_DIGEST_LINE: Final = len(_DIGEST) + 64 + 1
_CLUSTER_LINE: Final = b'\n["%s",' % records.CLUSTER_KEY.encode()


class BackupDamaged(DataLost):
    """The file is no whole backup; take another one."""


@dataclass(frozen=True, slots=True)
class Row:
    """One key, relative to the cluster's prefix, and its value."""

    key: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Backup:
    """All metadata of one cluster at one revision."""

    cluster: str
    """Name of the cluster; part of every key in the store."""
    revision: int
    time_ms: int
    """When it was read, in ms since 1970."""
    rows: tuple[Row, ...]


def file_name(cluster: str, utc: str, revision: int) -> str:
    """``CLUSTER-UTC-REVISION.backup``; with ``utc`` as ``20261122T055900Z`` names sort by time."""
    return f"{cluster}-{utc}-{revision}{SUFFIX}"


def encode(backup: Backup) -> bytes:
    facts = {
        "cluster": backup.cluster,
        "revision": backup.revision,
        "time_ms": backup.time_ms,
        "rows": len(backup.rows),
    }
    lines = [_line(facts), *(_line([row.key, row.value.decode("latin-1")]) for row in backup.rows)]
    return frame(b"\n".join(lines) + b"\n", _MAGIC, VERSION)


def decode(content: bytes) -> Backup:
    """
    The backup that a file holds.

    Raises:
        BackupDamaged: it is no backup, was cut short, or differs from what was written.
        UnsupportedVersion: it is sound and of another version; both numbers are named.
    """
    try:
        return _parse(unframe(content, _MAGIC, VERSION))
    except (ValueError, KeyError, TypeError) as error:  # sound by its checksum: a program wrote nonsense
        raise BackupDamaged(f"the backup's rows cannot be read ({error}); take another one") from error


def frame(content: bytes, magic: bytes, version: int) -> bytes:
    """Lines of ``content`` between a line with the version and one with the checksum."""
    whole = magic + str(version).encode() + b"\n" + content
    return whole + _digest_of(whole)


def unframe(content: bytes, magic: bytes, version: int) -> bytes:
    """The lines between; raises as ``decode``."""
    if not content.startswith(magic):
        raise BackupDamaged("this is no backup of Headrace's metadata; give a file that `backup` has written")
    body, digest = content[:-_DIGEST_LINE], content[-_DIGEST_LINE:]
    if digest != _digest_of(body):
        raise BackupDamaged(
            "the backup was cut short or changed after it was written (its checksum does not fit); take another one"
        )
    first, _, rest = body.partition(b"\n")
    found = first[len(magic) :]
    if found != str(version).encode():
        shown = found[:20].decode("ascii", "replace")
        raise UnsupportedVersion(
            f"the backup has version {shown}, this program knows version {version}; restore it with the version of "
            "Headrace that made it"
        )
    return rest


def identity_in(content: bytes) -> str | None:
    """
    Id of the cluster that the content of a plain backup is of, without a look at all of it; None where it cannot be
    told.

    Two clusters may have one name: where etcd lost its data and a controller was started, it made another.
    """
    start = content.find(_CLUSTER_LINE) + 1
    if not start:
        return None
    try:
        _, value = json.loads(content[start : content.index(b"\n", start)])
        record = records.decode(records.CLUSTER_KEY, str(value).encode("latin-1"))
    except (ValueError, KeyError, TypeError, HeadraceError):  # damaged
        return None
    return record.id if isinstance(record, records.Cluster) else None


def _parse(rest: bytes) -> Backup:
    head, *lines = rest.splitlines()
    facts: dict[str, Any] = json.loads(head)
    rows = [Row(str(key), str(value).encode("latin-1")) for key, value in map(json.loads, lines)]
    if len(rows) != facts["rows"]:
        raise ValueError(f"{len(rows)} rows where {facts['rows']} were written")
    return Backup(str(facts["cluster"]), int(facts["revision"]), int(facts["time_ms"]), tuple(rows))


def _line(value: dict[str, Any] | Sequence[str]) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True).encode()


def _digest_of(content: bytes) -> bytes:
    return _DIGEST + hashlib.sha256(content).hexdigest().encode() + b"\n"
