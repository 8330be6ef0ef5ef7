"""
The form of a backup that only the owner of a key can read: a few facts in plain text, then an envelope in PEM.

The facts are what choosing and removing files needs, and the certificates it was encrypted to. The checksum in the last
line is of everything before, so a file that was cut is known without the key. Readers of PEM, such as ``openssl cms``,
pass over all lines but the envelope's. Called by ``adapters.envelopes`` and ``adapters.backup_files``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from headrace_controller.core.backup_file import Backup, BackupDamaged, frame, identity_in, unframe

VERSION: Final = 1
_MAGIC: Final = b"headrace-encrypted-backup "


@dataclass(frozen=True, slots=True)
class Facts:
    """What anybody can read of an encrypted backup."""

    cluster: str
    identity: str | None
    """Id of the cluster."""
    revision: int
    time_ms: int
    certificates: tuple[str, ...]
    """To which it is encrypted, in PEM."""


def is_encrypted(content: bytes) -> bool:
    return content.startswith(_MAGIC)


def encode_encrypted(facts: Facts, envelope: bytes) -> bytes:
    """``envelope``: PEM, with a line's end at its end."""
    fields = {
        "cluster": facts.cluster,
        "cluster_id": facts.identity,
        "revision": facts.revision,
        "time_ms": facts.time_ms,
        "certificates": facts.certificates,
    }
    return frame(json.dumps(fields, separators=(",", ":")).encode() + b"\n" + envelope, _MAGIC, VERSION)


def decode_encrypted(content: bytes) -> tuple[Facts, bytes]:
    """
    The facts and the envelope.

    Raises:
        BackupDamaged: it is none, was cut short, or differs from what was written.
        UnsupportedVersion: it is sound and of another version.
    """
    head, _, envelope = unframe(content, _MAGIC, VERSION).partition(b"\n")
    try:
        return _facts(head), envelope
    except (ValueError, KeyError, TypeError) as error:
        raise BackupDamaged(f"the encrypted backup's facts cannot be read ({error}); take another one") from error


def whose(content: bytes) -> str | None:
    """Id of the cluster that a backup, encrypted or not, is of; None where it cannot be told."""
    if not is_encrypted(content):
        return identity_in(content)
    try:
        return _facts(content.split(b"\n", 2)[1]).identity
    except (ValueError, KeyError, TypeError, IndexError):  # damaged
        return None


def facts_of(backup: Backup, identity: str | None, certificates: tuple[str, ...]) -> Facts:
    return Facts(backup.cluster, identity, backup.revision, backup.time_ms, certificates)


def _facts(line: bytes) -> Facts:
    fields: dict[str, Any] = json.loads(line)
    identity = fields["cluster_id"]
    return Facts(
        str(fields["cluster"]),
        None if identity is None else str(identity),
        int(fields["revision"]),
        int(fields["time_ms"]),
        tuple(str(pem) for pem in fields["certificates"]),
    )
