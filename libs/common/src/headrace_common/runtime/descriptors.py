"""Decides how many descriptors a process may have, and how many of them connections may take."""

from __future__ import annotations

import resource
from typing import Final

_DESCRIPTORS_MAX: Final = 1 << 20
"""Where the system sets no bound: more than any process here can use."""
_CONNECTIONS_SHARE: Final = 4
"""Files of the store, streams to peers and scrapes need the rest."""


def raise_descriptor_limit() -> int:
    """Raise what this process may have to what it may raise it to; the number of descriptors it has from now on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return descriptors_max()


def descriptors_max() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _DESCRIPTORS_MAX if soft == resource.RLIM_INFINITY else soft


def connections_max() -> int:
    """Connections that all listeners of clients may have together."""
    return max(1, descriptors_max() // _CONNECTIONS_SHARE)
