"""
Ports that stay free for this cluster, also while one of its processes is down.

A port chosen by binding port 0 comes from the range that outgoing connections use too, so somebody's connection
may take it between two starts of a broker. These come from below that range, and each is claimed for the life of
the supervisor, so that two clusters that start at the same time never choose the same one. Those of services are also
held, for clients show their keys there, and nodes their token: no other user gets one while its process is dead. etcd
cannot share a port; who takes one of its has no certificate of its CA, and is told nothing.
"""

from __future__ import annotations

import socket
import zlib
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Final

from headrace_cli.local.etcd_peers import PLAIN
from headrace_cli.local.failures import LocalClusterFailed
from headrace_cli.local.plan import FIRST_PORTS, HOST, ClusterOptions, host_of, slots
from headrace_common.runtime.held_ports import hold_port
from headrace_common.runtime.port_claims import claim_port

LOWEST: Final = 20_000
HIGHEST: Final = 32_767


class PortClaims:
    """The ports of one cluster; used by one supervisor, which holds the claims until it ends."""

    def __init__(self, seed: str) -> None:
        """``seed`` (the data directory) says where the search begins, so that clusters rarely meet."""
        self._claims: dict[int, socket.socket] = {}
        self._held: dict[int, list[socket.socket]] = {}
        self._top = _below_ephemeral()
        self._next = LOWEST + zlib.crc32(seed.encode()) % (self._top - LOWEST)

    def claim(self, port: int, *, hold: bool = False) -> bool:
        """Take ``port`` if nobody listens on it and no other cluster has claimed it; ``hold`` it on the loopback."""
        if port in self._claims:
            return False
        held = _hold(port) if hold else [] if _can_bind(port) else None
        claim = None if held is None else claim_port(port)
        if held is None or claim is None:
            for each in held or ():
                each.close()
            return False
        self._claims[port], self._held[port] = claim, held
        return True

    def held(self, port: int) -> socket.socket | None:
        """What holds it at ``HOST``; None: it is not held."""
        return next(iter(self._held.get(port, ())), None)

    def claim_free(self, foreign: Collection[int] = (), *, hold: bool = False) -> int:
        """
        Any free port that is none of ``foreign``.

        Raises:
            LocalClusterFailed: there is none in the range.
        """
        for _ in range(self._top - LOWEST + 1):
            self._next = LOWEST + (self._next + 1 - LOWEST) % (self._top - LOWEST + 1)
            if self._next not in foreign and self.claim(self._next, hold=hold):
                return self._next
        raise LocalClusterFailed(f"no port in {LOWEST}..{self._top} is free; stop other clusters with `headrace down`")

    def close(self) -> None:
        """Give all claims back."""
        for each in (*self._claims.values(), *(held for port in self._held.values() for held in port)):
            each.close()
        self._claims.clear()
        self._held.clear()


def ports_of_a_copy(options: ClusterOptions, saved: Mapping[str, int]) -> dict[str, int]:
    """
    What a copied directory keeps of the original's ports: those by which members of an etcd quorum know each other.
    Both clusters have the same id, so that the original's clients could not tell the copy from their own. Pure.
    """
    return {slot: port for slot, port in saved.items() if options.etcd_members > 1 and _is_peer(slot)}


def _refuse_moved_peer(options: ClusterOptions, saved: Mapping[str, int], slot: str) -> None:
    """One that moves from plain text to TLS may get any port."""
    port, moves = options.ports[slot], slot.removesuffix(".peer") + PLAIN in saved
    if options.etcd_members > 1 and slot.endswith(".peer") and not moves and saved.get(slot, port) != port:
        raise LocalClusterFailed(
            f"{slot} has port {saved[slot]}, by which the other members of etcd know it, and cannot change; start "
            f"without --port {slot}={port}"
        )


def _is_peer(slot: str) -> bool:
    return slot.endswith((".peer", PLAIN))


def choose_ports(
    options: ClusterOptions, saved: Mapping[str, int], claims: PortClaims, foreign: Collection[int] = ()
) -> tuple[dict[str, int], list[str]]:
    """
    A port for every slot, and sentences about those that are not what they were.

    Ports given in ``options`` are used or refused. Those of the last start are used again if they are free, so
    that clients find the cluster where it was; members of an etcd quorum know each other by them, so there they
    have to be. ``foreign`` are another cluster's, which is down: they are taken only where ``options`` say so.

    Raises:
        LocalClusterFailed: a port that cannot be another is taken.
    """
    chosen: dict[str, int] = {}
    notes: list[str] = []
    wanted = slots(options)
    for slot in (s for s in wanted if s in options.ports):
        port = options.ports[slot]
        _refuse_moved_peer(options, saved, slot)
        if not claims.claim(port, hold=is_held(options, slot)):
            raise LocalClusterFailed(f"port {port} of {slot} is in use; give another with --port {slot}=PORT")
        chosen[slot] = port
    for slot in (s for s in wanted if s not in chosen and s in saved):
        if claims.claim(saved[slot], hold=is_held(options, slot)):
            chosen[slot] = saved[slot]
        elif slot.endswith(".peer") and options.etcd_members > 1:
            raise LocalClusterFailed(f"port {saved[slot]} of {slot} is in use and cannot change; free it and try again")
        else:
            notes.append(f"{slot} had port {saved[slot]}, which is in use now; it gets another")
    for slot, port in FIRST_PORTS.items():
        is_free = slot in wanted and slot not in chosen and port not in foreign
        if is_free and claims.claim(port, hold=is_held(options, slot)):
            chosen[slot] = port
    for slot in wanted:
        if slot not in chosen:
            chosen[slot] = claims.claim_free(foreign, hold=is_held(options, slot))
    return chosen, notes


def is_held(options: ClusterOptions, slot: str) -> bool:
    """Whether the supervisor holds the port: that of a service, where the supervisor's own network has it."""
    return not slot.startswith("etcd-") and host_of(options, slot) == HOST


def _hold(port: int) -> list[socket.socket] | None:
    """The sockets, the one of ``HOST`` first. ``localhost`` is ::1 too, so nobody else gets that."""
    held = hold_port(HOST, port)
    if held is None or not _has_ipv6():
        return None if held is None else [held]
    of_ipv6 = hold_port("::1", port)
    if of_ipv6 is None:
        held.close()
        return None
    return [held, of_ipv6]


@cache
def _has_ipv6() -> bool:
    if not socket.has_ipv6:
        return False
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def _can_bind(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _below_ephemeral() -> int:
    try:
        low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return HIGHEST
    return min(HIGHEST, low - 1) if low > LOWEST + 1000 else HIGHEST
