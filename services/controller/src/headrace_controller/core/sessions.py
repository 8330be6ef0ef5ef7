"""
Who lives: the sessions of registered nodes, in the memory of the active controller.

Time comes in as monotonic milliseconds. Called by the active controller's term with heartbeats and ticks. A session
that was missed costs a re-registration and nothing else, since epochs decide and not clocks; so a new controller
gives every node a full session.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headrace_common.core.ids import NodeId
from headrace_common.core.image import Node, NodeKey, Role

BEHIND_MS: Final = 10_000.0
"""A node that lacks a change of access for so long is named: a second is what it takes."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What a node says of itself."""

    key: NodeKey
    epoch: int
    image_revision: int
    want_fenced: bool = False
    want_shutdown: bool = False
    feature_level_max: int = 0
    disk_low: bool = False
    """A broker's disk is below its reserve: it refuses appends."""
    session_key: bytes = b""
    """The public half of what it signs with; empty: it has none."""
    audit_start: str = ""
    """The start of its audit; empty: it writes none."""
    audit_events: int = 0
    keys_wanted: tuple[str, ...] = ()
    """Aliases of issuers that may have new keys."""


@dataclass(slots=True)
class Session:
    """One node's last word."""

    epoch: int
    seen_ms: float
    image_revision: int = 0
    disk_low: bool = False
    lacks_since_ms: float | None = None
    """Since when its image lacks a change of access; None: it lacks none, as far as it has said."""


class Sessions:
    """All sessions; one per registered node."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._sessions: dict[NodeKey, Session] = {}
        self._access_at = 0
        """The revision by which the newest change of access was there."""

    def open(self, key: NodeKey, epoch: int, now_ms: float) -> None:
        """A full session, for a node that registered, or that a new controller found."""
        self._sessions[key] = Session(epoch, now_ms)

    def close(self, key: NodeKey) -> None:
        """The node left for good."""
        self._sessions.pop(key, None)

    def renew(self, heartbeat: Heartbeat, now_ms: float) -> None:
        """The node spoke, under an epoch that the caller has checked."""
        session = self._sessions.setdefault(heartbeat.key, Session(heartbeat.epoch, now_ms))
        session.epoch, session.seen_ms = heartbeat.epoch, now_ms
        session.disk_low = heartbeat.disk_low
        session.image_revision = max(session.image_revision, heartbeat.image_revision)
        self._look(session, now_ms)

    def access_changed(self, revision: int, now_ms: float) -> None:
        """Who may what is another at ``revision`` than before it."""
        self._access_at = revision
        for session in self._sessions.values():
            self._look(session, now_ms)

    def _look(self, session: Session, now_ms: float) -> None:
        if session.image_revision >= self._access_at:
            session.lacks_since_ms = None
        elif session.lacks_since_ms is None:
            session.lacks_since_ms = now_ms

    def behind(self, now_ms: float) -> dict[NodeKey, float]:
        """Nodes that live and lack a change of access for longer than it takes, and for how long, in ms."""
        return {
            key: now_ms - session.lacks_since_ms
            for key, session in self._sessions.items()
            if session.lacks_since_ms is not None
            and now_ms - session.lacks_since_ms > BEHIND_MS
            and now_ms - session.seen_ms <= self._timeout_ms
        }

    def image_revision(self, key: NodeKey) -> int:
        """How far the node's image is, as far as known; 0: it has not said."""
        session = self._sessions.get(key)
        return 0 if session is None else session.image_revision

    def without_room(self) -> frozenset[NodeId]:
        """Brokers whose disk is below its reserve, by their last word."""
        return frozenset(key.id for key, one in self._sessions.items() if one.disk_low and key.role is Role.BROKER)

    def list_expired(self, now_ms: float) -> list[NodeKey]:
        """Nodes that were silent for longer than the session lasts."""
        return [key for key, session in self._sessions.items() if now_ms - session.seen_ms > self._timeout_ms]


def may_be_unfenced(node: Node, heartbeat: Heartbeat, registered_at: int) -> bool:
    """Whether a fenced node takes part again: it wants to, it stays, and it has seen its own registration."""
    return (
        node.fenced
        and not heartbeat.want_fenced
        and not heartbeat.want_shutdown
        and (heartbeat.image_revision >= registered_at)
    )
