"""
Keeps the certificates of a local cluster. For etcd a CA of this data directory, one pair for its members, one for those
who may use it; for services with TLS another CA, and one pair for each role. The supervisor makes them at each start,
before any process runs, and looks at them again while they run.

What is there is kept as long as it is sound and lasts; whatever is missing, torn, of another CA or old is made anew.
A CA is made at a start alone: who runs trusts the one that it was started with.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from headrace_cli.local.certificate_files import LEAF_LIFE, CertificateFiles, EtcdFiles, NodeFiles
from headrace_cli.local.failures import LocalClusterFailed
from headrace_common.runtime.certificates import (
    Leaf,
    lasts,
    leaf_of,
    make_ca,
    make_pair,
    read_pair,
    serves,
    write_pair,
)

CA_NAME: Final = "headrace local CA of nodes"
TRUST_DOMAIN: Final = "headrace"
"""What services take without a setting."""


def renew(
    files: EtcdFiles, hosts: Collection[str], now: datetime, *, life: timedelta = LEAF_LIFE, running: bool = False
) -> list[str]:
    """
    Have everything there that etcd and controllers need; the names of the files that were made.

    Args:
        hosts: where members listen, as addresses or names.
        life: of pairs that are made.
        running: processes use them; the CA stays, whatever its state.

    Raises:
        LocalClusterFailed: files cannot be written.
    """
    leaves = {
        files.member: Leaf(files.member.stem, frozenset(hosts)),
        files.controller: Leaf(files.controller.stem),
    }
    with writing(files.directory):
        return _renew(files.ca, "headrace local CA", leaves, now, life, running=running)


def renew_nodes(
    files: NodeFiles,
    roles: Collection[str],
    hosts: Collection[str],
    now: datetime,
    *,
    life: timedelta = LEAF_LIFE,
    running: bool = False,
) -> list[str]:
    """
    The same for the services: a CA of their own, which cannot reach etcd, and one pair for each of ``roles``.

    Args:
        hosts: where they listen, as addresses or names.

    Raises:
        LocalClusterFailed: files cannot be written.
    """
    leaves = {files.of(role): leaf_of(role, hosts, TRUST_DOMAIN) for role in roles}
    with writing(files.directory):
        return _renew(files.ca, CA_NAME, leaves, now, life, running=running)


@contextmanager
def directory_lock(directory: Path) -> Iterator[None]:
    """Waits for whoever has it: that one writes some files."""
    opened = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


@contextmanager
def writing(directory: Path) -> Iterator[None]:
    """
    While the block runs nobody else writes to ``directory``, which is made where it is missing.

    Raises:
        LocalClusterFailed: files cannot be written.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with directory_lock(directory):
            yield
    except OSError as error:
        raise LocalClusterFailed(
            f"cannot write certificates to {error.filename or directory}: {error.strerror}"
        ) from error


def _renew(
    ca_file: Path, ca_name: str, leaves: Mapping[Path, Leaf], now: datetime, life: timedelta, *, running: bool
) -> list[str]:
    made: list[str] = []
    ca = read_pair(ca_file, CertificateFiles.key(ca_file))
    if running and (ca is None or ca.certificate.public_key() != ca.key.public_key()):
        return made
    if ca is None or not (running or lasts(ca, ca, now)):
        ca = make_ca(ca_name, now)
        write_pair(ca_file, CertificateFiles.key(ca_file), ca)
        made.append(ca_file.name)
    for path, wanted in leaves.items():
        leaf = read_pair(path, CertificateFiles.key(path))
        if leaf is None or not serves(leaf, ca, wanted, now):
            write_pair(path, CertificateFiles.key(path), make_pair(ca, wanted, now, life))
            made.append(path.name)
    return made
