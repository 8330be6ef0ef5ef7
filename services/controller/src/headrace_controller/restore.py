"""
``python -m headrace_controller.restore``: puts a backup of the metadata into etcd, under a new incarnation.

All nodes are stopped meanwhile. Afterwards nobody leads until every broker named has joined and its logs were seen.
Prints one line of JSON. Can be repeated after it was interrupted at any point.
"""

from __future__ import annotations

import argparse
import getpass
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from headrace_common.core.errors import HeadraceError, Rejected
from headrace_common.core.ids import NodeId
from headrace_common.runtime.clock import Clock, SystemClock
from headrace_common.runtime.entropy import new_incarnation
from headrace_controller import store_access
from headrace_controller.adapters.backup_files import BackupFiles
from headrace_controller.adapters.envelopes import BackupKey, read_backup
from headrace_controller.core import records
from headrace_controller.core.backup_file import Backup
from headrace_controller.core.encrypted_backup import whose
from headrace_controller.core.restored import is_login, restore_metadata
from headrace_controller.engine import restore_writing
from headrace_controller.ports import MetadataStore

_LOOK_EVERY_MS: Final = 500


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments, or the end of the process with a usage text."""
    parser = store_access.arguments(
        "restore", "Put a backup of the metadata into etcd, while controllers, brokers, coordinators and admins stand."
    )
    parser.add_argument(
        "--brokers",
        required=True,
        metavar="IDS",
        help="every broker that may hold logs, with commas; no partition has a leader until all of them were asked",
    )
    parser.add_argument("--replace", action="store_true", help="delete the metadata that is there first")
    parser.add_argument(
        "--decrypt-with",
        type=Path,
        metavar="FILE",
        help="the private key (PEM) that opens an encrypted backup; its password is asked for if it has one",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="a backup, or a directory: its newest whole one")
    given = parser.parse_args(argv)
    try:
        given.expected = [NodeId(int(part)) for part in given.brokers.split(",")]
    except ValueError:
        parser.error(f"--brokers takes ids with commas, such as 0,1,2, not {given.brokers}")
    return given


def find_backup(given: argparse.Namespace) -> tuple[Path, Backup]:
    """
    The backup that is meant.

    Raises:
        NotFound, BackupDamaged, UnsupportedVersion: there is none that can be used.
        Conflict: a directory has backups of several clusters.
        Rejected: it is of another cluster, or the key is no key.
        BackupKeyMissing: it is encrypted, and its key was not given.
    """
    key = None if given.decrypt_with is None else BackupKey.read(given.decrypt_with, ask_password)
    if given.file.is_dir():
        path, backup, passed_over = BackupFiles(given.file, given.cluster, key=key).newest()
        for why in passed_over:
            sys.stderr.write(f"passed over {why}\n")
    else:
        path = given.file
        try:
            backup = read_backup(path.read_bytes(), key)
        except HeadraceError as error:
            raise type(error)(f"{path}: {error}") from error
    if backup.cluster != given.cluster:
        raise Rejected(f"{path} is of cluster {backup.cluster}; give --cluster {backup.cluster}, or another backup")
    return path, backup


def ask_password(prompt: str) -> str:
    """
    What a person types, unseen.

    Raises:
        Rejected: nobody is there.
    """
    if not sys.stdin.isatty():
        raise Rejected(
            "the key has a password, which is asked for in a terminal alone; run it there, or give a key without"
        )
    return getpass.getpass(prompt)


async def restore(given: argparse.Namespace, clock: Clock) -> int:
    """Write one backup; the exit code."""
    path, backup = find_backup(given)
    ready = restore_metadata(backup, given.expected, clock.now_ms(), new_incarnation())
    async with store_access.open_store(given) as store:
        await store_access.once_it_answers(store, clock, given.wait)
        await once_nobody_is_active(store, clock, given.wait)
        revision = await restore_writing.write(store, ready, replace=given.replace)
    said: dict[str, object] = {
        "restored": str(path),
        "cluster_id": whose(path.read_bytes()),
        "backup_time": datetime.fromtimestamp(backup.time_ms / 1_000, UTC).isoformat(timespec="seconds"),
        "topics": sum(row.key.startswith(records.TOPICS_PREFIX) for row in backup.rows),
        "backup_revision": backup.revision,
        "revision": revision,
        "keys": len(ready.rows) + len(ready.last),
        "expected_brokers": list(ready.restore.expected),
        "logins_ended": sum(map(is_login, backup.rows)),
    }
    if any(row.key.startswith(records.ACCESS_PREFIX) for row in backup.rows):
        said["note"] = (
            "access is as it was at the time of the backup: keys made since are gone, and what was revoked since is "
            "there again; once the cluster runs, `headrace access since-backup` says what, as far as the audit knows"
        )
    sys.stdout.write(json.dumps(said) + "\n")
    return 0


async def once_nobody_is_active(store: MetadataStore, clock: Clock, wait_s: int) -> None:
    """
    Return when no controller holds the election key: the last one that ends gives it back, or its lease runs out.

    Raises:
        ControllersRun: not within ``wait_s``.
        StoreUnavailable: the store is away.
    """
    until_ms = clock.monotonic_ms() + wait_s * 1_000
    while await restore_writing.is_active(store):
        if clock.monotonic_ms() >= until_ms:
            raise restore_writing.ControllersRun
        await clock.sleep_ms(_LOOK_EVERY_MS)


if __name__ == "__main__":
    sys.exit(store_access.run(restore(parse_arguments(sys.argv[1:]), SystemClock())))
