"""Where reading begins: decided from the position, the slot and the server, before anything is read."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace_connect.connectors.postgres_cdc.position import Place
from headrace_connect.connectors.postgres_cdc.slots import Slot
from headrace_connect.core.pgoutput import format_lsn


@dataclass(frozen=True, slots=True)
class Server:
    """As IDENTIFY_SYSTEM describes it."""

    system: str
    end: int
    """Of its WAL."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Read from here on."""

    place: Place


@dataclass(frozen=True, slots=True)
class Make:
    """Make the slot, and decide again."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Changes behind the position are not to be had any more."""

    reason: str


def decide(place: Place | None, slot: Slot | None, server: Server, name: str) -> Begin | Make | Lost:
    """
    What to do.

    Args:
        place: of the last commit; None: there was none.
        name: of the slot.
    """
    if place is not None:
        reason = _find_loss(place, slot, server, name)
        return Lost(reason) if reason else Begin(replace(place, asked=0))
    if slot is None:
        return Make()
    if slot.is_lost:
        return Lost(f"the slot {name} was invalidated: the server has removed WAL that it needs")
    return Begin(Place(server.system, slot.confirmed))


def decide_anew(slot: Slot | None, server: Server) -> Begin | Make:
    """All tables are read again; the slot, if there is one, can be read."""
    return Make() if slot is None else Begin(Place(server.system, slot.confirmed))


def _find_loss(place: Place, slot: Slot | None, server: Server, name: str) -> str | None:
    at = format_lsn(place.lsn)
    if place.system != server.system:
        return f"the position is of the server {place.system}, and this one is {server.system}"
    if server.end < place.lsn:
        return f"the position is {at}, and the server's WAL ends at {format_lsn(server.end)}: it was restored"
    if slot is None:
        return f"there is no slot {name} any more; the position is {at}"
    if slot.is_lost:
        return f"the slot {name} was invalidated: the server has removed WAL that it needs"
    if slot.confirmed > place.lsn:
        return (
            f"the slot {name} goes on at {format_lsn(slot.confirmed)}, and the position is {at}: somebody else has "
            "read or made it"
        )
    return None
