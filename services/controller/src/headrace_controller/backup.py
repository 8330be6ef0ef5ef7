"""
``python -m headrace_controller.backup``: all metadata of a cluster at one revision, as one file.

Reads etcd and writes a file, beside running controllers. Prints one line of JSON; 0 also where there is no cluster yet.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from headrace_common.core.errors import Conflict
from headrace_common.runtime.clock import Clock, SystemClock
from headrace_controller import store_access
from headrace_controller.adapters.backup_files import BackupFiles
from headrace_controller.adapters.envelopes import Recipients
from headrace_controller.core import records
from headrace_controller.core.backup_file import Backup, Row
from headrace_controller.core.encrypted_backup import whose
from headrace_controller.core.restore_record import RESTORING_KEY
from headrace_controller.core.store import Listing


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments, or the end of the process with a usage text."""
    parser = store_access.arguments("backup", "Write all metadata of a cluster into one file.")
    parser.add_argument("--to", required=True, type=Path, metavar="DIR", help="directory of the backups")
    parser.add_argument("--keep", type=int, metavar="N", help="remove all but the newest N backups afterwards")
    parser.add_argument(
        "--encrypt-to",
        type=Path,
        metavar="FILE",
        help="a certificate with an RSA key (PEM), or some: only who has a key of theirs can read the backup",
    )
    given = parser.parse_args(argv)
    if given.keep is not None and given.keep < 1:
        parser.error(f"--keep takes 1 or more, not {given.keep}")
    return given


def take(cluster: str, listing: Listing, now_ms: int) -> Backup | None:
    """
    What is to be kept of a list of all keys; None: there is no cluster yet.

    Raises:
        Conflict: a restore is being written.
    """
    rows = tuple(Row(item.key, item.value) for item in listing.items)
    keys = {row.key for row in rows}
    if RESTORING_KEY in keys:
        raise Conflict("a restore is being written, or was not finished; finish it before a backup is made")
    if records.CLUSTER_KEY not in keys:
        return None
    return Backup(cluster, listing.revision, now_ms, rows)


async def back_up(given: argparse.Namespace, clock: Clock) -> int:
    """Make one backup; the exit code."""
    recipients = None if given.encrypt_to is None else Recipients.read(given.encrypt_to)
    async with store_access.open_store(given) as store:
        await store_access.once_it_answers(store, clock, given.wait)
        backup = take(given.cluster, await store.list_all(), clock.now_ms())
    if backup is None:
        _say({"backup": None, "note": f"there is no cluster {given.cluster} yet; nothing was written"})
        return 0
    files = BackupFiles(given.to, given.cluster, recipients=recipients)
    path = files.write(backup)
    identity = whose(path.read_bytes())
    removed = [] if given.keep is None else files.prune(given.keep, identity)
    said: dict[str, object] = {"backup": str(path), "cluster_id": identity, "revision": backup.revision}
    if recipients is not None:
        said["encrypted_to"] = recipients.names()
    _say({**said, "keys": len(backup.rows), "removed": len(removed), "kept": files.names()})
    return 0


def _say(said: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    sys.exit(store_access.run(back_up(parse_arguments(sys.argv[1:]), SystemClock())))
