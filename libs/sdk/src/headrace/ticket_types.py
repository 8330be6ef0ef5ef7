"""Whether somebody may do something, and tickets that say so, as clients have them. They come from brokers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class AccessQuestion(NamedTuple):
    """Whether somebody may do something."""

    operation: str
    """Such as ``READ``."""
    type: str
    """Such as ``CONNECTOR``."""
    name: str = ""
    """Of the resource; without one: whether there is any with which it may."""


class TicketAudience(NamedTuple):
    """For whom a ticket is, and what for: it is worth nothing to anybody else."""

    group: str
    """The group that the asked one is a member of."""
    endpoint: str
    """Where it is asked, as the group has it: ``host:port``."""
    purpose: str = ""
    """What is asked of it, as both sides call it, such as the name of a store."""


class AnnouncedChange(NamedTuple):
    """What a program does next for somebody that may, as the audit has it."""

    what: str
    """As ``PUT /connectors/shop/pause``."""
    asked_from: str = ""
    """The address of who asked the program for it."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """Says to its audience that somebody may do something."""

    text: bytes = field(repr=False)
    life_ms: int
    """How long it is good for, from when it was asked for."""


@dataclass(frozen=True, slots=True)
class AccessAnswer:
    """Whether somebody may do some things."""

    mode: str
    """Of the cluster: ``open``, ``permissive`` or ``closed``."""
    principal: str
    """Whom it is about."""
    refusals: tuple[str, ...]
    """One for each question; empty: it may."""
    ticket_refused: str = ""
    """Why a ticket is worth nothing; then nothing else is said but the mode."""

    @property
    def closed(self) -> bool:
        """Whether what nobody has allowed is refused."""
        return self.mode == "closed"
