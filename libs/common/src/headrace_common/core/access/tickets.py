"""
The tickets that one broker has made: each says to one member of a group that somebody may do some things.

A ticket is a name for a note in the broker's memory, so there is nothing to forge, and nothing to sign: only this
broker can say what it is worth, and it looks at its owner's credential and rights each time. It ends after a minute,
and with the broker; whoever needs it asks for another one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, NamedTuple

from headrace_common.core.access.authentication import Shown
from headrace_common.core.access.client_certificates import ClientCertificate
from headrace_common.core.access.control import Asked
from headrace_common.core.access.principal import Principal
from headrace_common.core.errors import Rejected, Unauthenticated
from headrace_common.core.ids import NodeId

LIFE_MS: Final = 60_000.0
REUSED_MS_MIN: Final = 30_000.0
"""Who asks for the same again gets the same ticket while it has so long to live."""
SECRET_BYTES: Final = 32
_NODE_BYTES: Final = 4
TICKET_BYTES: Final = _NODE_BYTES + SECRET_BYTES
RIGHTS_MAX: Final = 16
"""Of one ticket."""
TICKETS_PER_CALLER_MAX: Final = 1_000
TICKETS_MAX: Final = 100_000
"""Of one broker; where there are more, the oldest end early."""
NAME_CHARS_MAX: Final = 1_000
EARLY_MS: Final = 5_000.0
"""So long before a ticket ends its holder asks for another one."""
HELD_MAX: Final = 10_000


class Audience(NamedTuple):
    """For whom a ticket is, and what for."""

    group: str
    endpoint: str
    """Where it is asked, as its group has it."""
    purpose: str

    def check(self) -> None:
        """
        Raises:
            Rejected: nobody is called so.
        """
        if not self.group or not self.endpoint:
            raise Rejected("a ticket is for a member of a group: name the group, and the endpoint of the member")
        if max(map(len, self)) > NAME_CHARS_MAX:
            raise Rejected(f"names in a ticket have at most {NAME_CHARS_MAX} characters")


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """What a broker knows of one."""

    text: bytes
    owner: Shown
    audience: Audience
    rights: frozenset[Asked]
    """What it is good for at most."""
    until_ms: float


_Same = tuple[str | None, ClientCertificate | None, Principal, str | None, Audience, frozenset[Asked]]


def _same_as(owner: Shown, audience: Audience, rights: frozenset[Asked]) -> _Same:
    return owner.bearer, owner.certificate, owner.caller.principal, owner.caller.host, audience, rights


class Tickets:
    """Times are monotonic, in ms. One event loop."""

    def __init__(self, new_secret: Callable[[], bytes]) -> None:
        self._new_secret = new_secret
        self._known: dict[bytes, Ticket] = {}
        """By digest, so that nobody learns from how long it takes to find none. The oldest first."""
        self._of: dict[Principal, dict[bytes, Ticket]] = {}
        self._same: dict[_Same, Ticket] = {}

    def __len__(self) -> int:
        return len(self._known)

    def make(self, node: NodeId, owner: Shown, audience: Audience, rights: frozenset[Asked], now_ms: float) -> Ticket:
        """
        One for ``owner``, who may all of ``rights``; another that says the same, if it is not old.

        Args:
            node: the broker that will be asked about it.
        """
        assert rights, "it would be good for nothing"
        same = _same_as(owner, audience, rights)
        made = self._same.get(same)
        if made is not None and made.until_ms - now_ms >= REUSED_MS_MIN:
            return made
        self._end_those_before(now_ms)
        mine = self._of.setdefault(owner.caller.principal, {})
        if len(mine) >= TICKETS_PER_CALLER_MAX:
            self._end(next(iter(mine)))
        if len(self._known) >= TICKETS_MAX:
            self._end(next(iter(self._known)))
        text = node.to_bytes(_NODE_BYTES, "big") + self._new_secret()
        ticket = Ticket(text, owner, audience, rights, now_ms + LIFE_MS)
        digest = _digest(text)
        self._known[digest] = ticket
        self._of.setdefault(owner.caller.principal, {})[digest] = ticket
        self._same[same] = ticket
        return ticket

    def find(self, text: bytes, audience: Audience, now_ms: float) -> Ticket:
        """
        The ticket that somebody has shown to ``audience``.

        Raises:
            Unauthenticated: it is none of this broker's, over, or was made for somebody else or for something else.
        """
        ticket = self._known.get(_digest(text))
        if ticket is None or ticket.until_ms <= now_ms:
            raise Unauthenticated("the ticket is over, or the broker that made it was started again")
        if ticket.audience != audience:
            raise Unauthenticated("the ticket was made for another member, or to ask for something else")
        return ticket

    def _end_those_before(self, now_ms: float) -> None:
        while self._known:
            digest, oldest = next(iter(self._known.items()))
            if oldest.until_ms > now_ms:
                return
            self._end(digest)

    def _end(self, digest: bytes) -> None:
        ticket = self._known.pop(digest)
        principal = ticket.owner.caller.principal
        mine = self._of[principal]
        del mine[digest]
        if not mine:
            del self._of[principal]
        same = _same_as(ticket.owner, ticket.audience, ticket.rights)
        if self._same.get(same) is ticket:
            del self._same[same]


class HeldTickets:
    """Tickets that a process has for others, by whom they are shown to and what for. Times as above."""

    def __init__(self) -> None:
        self._held: dict[Hashable, tuple[bytes, float]] = {}

    def find(self, key: Hashable, now_ms: float) -> bytes:
        """One that is good for a while yet; empty: there is none."""
        text, until_ms = self._held.get(key, (b"", 0.0))
        return text if now_ms < until_ms else b""

    def has(self, key: Hashable) -> bool:
        """Whether there was one: whoever is asked wants to see one."""
        return key in self._held

    def keep(self, key: Hashable, text: bytes, life_ms: float, now_ms: float) -> None:
        """One that was asked for at ``now_ms``."""
        if len(self._held) >= HELD_MAX:
            self._held.clear()
        self._held[key] = text, now_ms + life_ms - EARLY_MS


def maker_of(text: bytes) -> NodeId | None:
    """The broker that has made a ticket, as it says itself; None: it is no ticket."""
    return NodeId(int.from_bytes(text[:_NODE_BYTES], "big")) if len(text) == TICKET_BYTES else None


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()
