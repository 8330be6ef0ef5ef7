"""
Keeps the certificates of a local cluster's etcd: a CA of this data directory, one pair for its members, one for those
who may use it. The supervisor calls ``renew`` at each start, before any process runs.

What is there is kept as long as it is sound and lasts; whatever is missing, torn, of another CA or old is made anew.
All processes start after that, so nobody is left with what was replaced.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Final

from headrace_cli.local.etcd import EtcdFiles
from headrace_cli.local.failures import LocalClusterFailed
from headrace_common.runtime.certificates import (
    Leaf,
    lasts,
    make_ca,
    make_pair,
    names_of,
    read_pair,
    write_pair,
)

LEAF_LIFE: Final = timedelta(days=1_095)
"""A cluster that is started today runs for a third of that at least, without being started again."""


def renew(files: EtcdFiles, hosts: Collection[str], now: datetime) -> list[str]:
    """
    Have everything there that etcd and controllers need; the names of the files that were made.

    Args:
        hosts: where members listen, as addresses or names.

    Raises:
        LocalClusterFailed: files cannot be written.
    """
    try:
        files.directory.mkdir(mode=0o700, exist_ok=True)
        return _renew(files, frozenset(hosts), now)
    except OSError as error:
        raise LocalClusterFailed(
            f"cannot write etcd's certificates to {error.filename or files.directory}: {error.strerror}"
        ) from error


def _renew(files: EtcdFiles, hosts: frozenset[str], now: datetime) -> list[str]:
    made: list[str] = []
    ca = read_pair(files.ca, files.key(files.ca))
    if ca is None or not lasts(ca, ca, now):
        ca = make_ca("headrace local CA", now)
        write_pair(files.ca, files.key(files.ca), ca)
        made.append(files.ca.name)
    for path, names in ((files.member, hosts), (files.controller, frozenset[str]())):
        leaf = read_pair(path, files.key(path))
        if leaf is None or not lasts(leaf, ca, now) or not names <= names_of(leaf.certificate):
            write_pair(path, files.key(path), make_pair(ca, Leaf(path.stem, names), now, LEAF_LIFE))
            made.append(path.name)
    return made
