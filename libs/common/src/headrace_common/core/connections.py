"""
Decides which HTTP connections may stay: so many in sum and from one address, and when there is no room, whose place a
new one takes.

A connection *waits* while no whole request of it is being answered: it has sent nothing, a part of a request, or has
its answer. It costs its owner nothing, so a newer connection of the same address takes the place of the one that has
waited longest. Requests under way are never ended for others. Called by the HTTP server, for every connection.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address
from typing import Final, Generic, TypeVar

C = TypeVar("C", bound=Hashable)

_IPV6_PREFIX_BITS: Final = 64
"""What one subscriber or machine commonly has."""


@dataclass(frozen=True, slots=True)
class Admitted(Generic[C]):
    """It may stay; ``instead_of`` is to be closed."""

    instead_of: C | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """There is no room: all that are open are answering requests."""

    reason: str


@dataclass(slots=True)
class _Address(Generic[C]):
    open: int = 0
    waiting: OrderedDict[C, None] = field(default_factory=OrderedDict)
    """Longest first."""


class Connections(Generic[C]):
    """All open connections of one server. Every call takes the same time, however many there are."""

    def __init__(self, total_max: int, per_address_max: int) -> None:
        """``per_address_max`` 0: only the sum is bounded, as behind a proxy, where all come from one address."""
        self._total_max = total_max
        self._per_address_max = per_address_max
        self._of: dict[C, str] = {}
        self._addresses: dict[str, _Address[C]] = {}
        self._waiting: OrderedDict[C, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._of)

    def admit(self, connection: C, address: str) -> Admitted[C] | Refused:
        """A connection was opened; it waits for its first request. Closed ones are given back by this already."""
        address = subscriber(address)
        there = self._addresses.get(address)
        leaving: C | None = None
        if self._per_address_max and there is not None and there.open >= self._per_address_max:
            if not there.waiting:
                return Refused(f"{there.open} requests of this address are being answered")
            leaving = next(iter(there.waiting))
        elif len(self._of) >= self._total_max:
            if not self._waiting:
                return Refused(f"{len(self._of)} requests are being answered")
            leaving = next(iter(self._waiting))
        if leaving is not None:
            self.closed(leaving)
        there = self._addresses.setdefault(address, _Address())
        there.open += 1
        there.waiting[connection] = None
        self._waiting[connection] = None
        self._of[connection] = address
        return Admitted(leaving)

    def answering(self, connection: C) -> None:
        """A whole request has come."""
        if connection in self._of:
            self._addresses[self._of[connection]].waiting.pop(connection, None)
            self._waiting.pop(connection, None)

    def answered(self, connection: C) -> None:
        """The answer was given; it waits for the next request."""
        if connection in self._of:
            self._addresses[self._of[connection]].waiting[connection] = None
            self._waiting[connection] = None

    def closed(self, connection: C) -> None:
        """It is no longer open; once is enough."""
        address = self._of.pop(connection, None)
        if address is None:
            return
        there = self._addresses[address]
        there.open -= 1
        there.waiting.pop(connection, None)
        self._waiting.pop(connection, None)
        if there.open == 0:
            del self._addresses[address]


def subscriber(address: str) -> str:
    """What counts as one address: an IPv4 address, or the network of an IPv6 one, of which anybody has 2^64."""
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(ip, IPv6Address):
        return address
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return str(IPv6Address(int(ip) >> (128 - _IPV6_PREFIX_BITS) << (128 - _IPV6_PREFIX_BITS)))
