"""
One Membership call as the engine sees it: requests go to a shard, messages wait here for the servicer to write them.

What waits is bounded: a member that does not read is cut off, it finds its way back when it reads again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, replace
from typing import Final

from headrace_common.core.access.control import EVERYTHING, Rights
from headrace_common.core.access.resources import Operation, ResourceType
from headrace_common.core.access.right import Right
from headrace_common.core.access.rows import Mode
from headrace_common.core.errors import HeadraceError, Overloaded
from headrace_coordinator.core.effects import Message
from headrace_coordinator.core.values import ClassicSubscription

REQUESTS_MAX: Final = 16
"""Requests of one member that may wait to be handled; then its stream is not read."""
MESSAGES_MAX: Final = 64
"""Messages that may wait for one member. It has few requests under way, and news come seldom."""


@dataclass(frozen=True, slots=True)
class RightsSight:
    """See ``Sight``: the topics that a caller may DESCRIBE. Before the cluster is closed everybody sees all of them."""

    rights: Rights

    def filter_visible(self, topics: frozenset[str]) -> frozenset[str]:
        if self.rights.control.view.mode is not Mode.CLOSED:
            return topics
        shows = self.rights.shows
        return frozenset(name for name in topics if shows(Operation.DESCRIBE, ResourceType.TOPIC, name))

    def filter_protocols(
        self, protocols: tuple[tuple[str, ClassicSubscription], ...]
    ) -> tuple[tuple[str, ClassicSubscription], ...]:
        """What whoever computes the assignment is told of a member of the classic protocol."""
        if self.rights.control.view.mode is not Mode.CLOSED:
            return protocols
        visible = self.filter_visible(frozenset(topic for _, said in protocols for topic in said.topics))
        return tuple(
            (name, replace(said, topics=tuple(topic for topic in said.topics if topic in visible)))
            for name, said in protocols
        )


class MemberStream:
    """Made by ``ShardHost.open_stream``; used on its event loop. ``rights``: of who has opened it."""

    def __init__(self, number: int, group_id: str, address: str, rights: Rights = EVERYTHING) -> None:
        self.number = number
        """Grows within the process."""
        self.group_id = group_id
        self.address = address
        """Of the peer, ``host:port``."""
        self.sight = RightsSight(rights)
        self._reads = Right(rights, Operation.READ, ResourceType.GROUP)
        self._messages: deque[Message] = deque()
        self._changed = asyncio.Event()
        self._closed = False
        self._error: HeadraceError | None = None
        self._requests = 0
        self._room = asyncio.Event()
        self._room.set()

    def check(self) -> None:
        """
        Raises:
            GroupAuthorizationFailed: its caller may not READ the group, or not any more.
        """
        self._reads.check(self.group_id)

    def taken(self) -> None:
        self._requests += 1
        if self._requests >= REQUESTS_MAX:
            self._room.clear()

    def handled(self) -> None:
        """One that was taken in has been handled."""
        self._requests -= 1
        self._room.set()

    async def room(self) -> None:
        """Wait until another request may be read. When the stream has ended, whoever waits is cancelled."""
        await self._room.wait()

    @property
    def ended(self) -> bool:
        """Whether nothing more can be sent."""
        return self._closed or self._error is not None

    def send(self, message: Message) -> None:
        """Queue ``message``; dropped when the stream has ended."""
        if self.ended:
            return
        if len(self._messages) >= MESSAGES_MAX:
            self.fail(Overloaded(f"{MESSAGES_MAX} messages wait for this member; read the stream, then join again"))
            return
        self._messages.append(message)
        self._changed.set()

    def close(self) -> None:
        """End the stream after what waits."""
        self._closed = True
        self._changed.set()

    def fail(self, error: HeadraceError) -> None:
        """End the stream at once; what waits is dropped."""
        if self._error is None:
            self._error = error
            self._messages.clear()
            self._changed.set()

    async def next_message(self) -> Message | None:
        """
        The next message to write; None: the stream is to end.

        Raises:
            HeadraceError: why it is to end.
        """
        while True:
            if self._error is not None:
                raise self._error
            if self._messages:
                return self._messages.popleft()
            if self._closed:
                return None
            self._changed.clear()
            await self._changed.wait()
