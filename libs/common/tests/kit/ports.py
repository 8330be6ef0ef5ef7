"""
Ports for processes that a test starts, and that somebody has to know before they listen.

A port that binding port 0 gives may be anybody's connection by the time the process listens, and between two of its
lives. These come from below the range of connections and of local clusters, and each is claimed for as long as the test
process lives (or until it has asked for ``KEPT`` more), so that tests that run side by side never get the same one.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from itertools import cycle, islice
from typing import Final

from headrace_common.runtime.port_claims import claim_port

LOWEST: Final = 10_000
HIGHEST: Final = 19_999
"""Below ``headrace_cli.local.ports``, whose clusters claim theirs in the same way."""
KEPT: Final = 300

_count: Final = HIGHEST - LOWEST + 1
_ports: Final = islice(cycle(range(LOWEST, HIGHEST + 1)), os.getpid() * 61 % _count, None)
_claims: Final[dict[int, socket.socket]] = {}
"""The oldest first."""


def free_port() -> int:
    """A port that nobody listens on, on any address, and that no other test has."""
    for port in islice(_ports, _count):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))
            if (claim := claim_port(port)) is not None:
                _claims[port] = claim
                if len(_claims) > KEPT:
                    give_back(next(iter(_claims)))
                return port
    raise AssertionError(f"no port in {LOWEST}..{HIGHEST} is free")


def give_back(port: int) -> None:
    """Claim it no longer: for who claims it himself, as a local cluster does."""
    if port in _claims:
        _claims.pop(port).close()
