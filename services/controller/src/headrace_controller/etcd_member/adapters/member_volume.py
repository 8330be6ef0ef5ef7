"""The member's volume as a directory: etcd's data, and the facts beside it."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from headrace_common.runtime.etcd_log import drop_unwritten
from headrace_controller.etcd_member.core.facts import Facts, decode, encode

_log = logging.getLogger(__name__)


class MemberVolume:
    """See the port."""

    def __init__(self, data_dir: Path, facts_file: Path) -> None:
        self._data_dir = data_dir
        self._facts_file = facts_file

    def has_data(self) -> bool:
        """
        See the port. etcd makes its log under another name and renames the directory when it is whole. One that has no
        entry yet is removed: etcd would start by it, and elect nobody.
        """
        if drop_unwritten(self._data_dir):
            _log.warning("etcd was killed here before its first entry; it begins anew")
        log = self._data_dir / "member" / "wal"
        return log.is_dir() and any(entry.suffix == ".wal" for entry in log.iterdir())

    def load(self) -> Facts | None:
        try:
            return decode(self._facts_file.read_bytes())
        except FileNotFoundError:
            return None

    def store(self, facts: Facts) -> None:
        write_whole(self._facts_file, encode(facts))


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file, whole or not at all; it is on disk then."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
