"""
FindCoordinator: by the image, and by asking the controller for the internal topic when there is none yet.

However many callers wait, the controller is asked once at a time; each caller waits for a bounded time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from headrace_broker.core.coordination import KEY_CHARS_MAX, FoundCoordinator, coordinator_of
from headrace_broker.engine.image_applier import ImageApplier
from headrace_broker.engine.replicas import Replicas
from headrace_common.core.access.control import EVERYTHING, Rights
from headrace_common.core.access.resources import Operation, ResourceType
from headrace_common.core.access.right import Right
from headrace_common.core.errors import CoordinatorNotAvailable, HeadraceError, Rejected
from headrace_common.core.image import INTERNAL_TOPICS, ShardKind
from headrace_common.runtime.clock import limit_s
from headrace_common.runtime.tasks import TaskRunner

KEYS_PER_REQUEST_MAX: Final = 1_000
CALLER_WAIT_S: Final = 10.0
_TYPES: Final = {
    ShardKind.GROUPS: ResourceType.GROUP,
    ShardKind.TRANSACTIONS: ResourceType.TRANSACTIONAL_ID,
}


class InternalTopics(Protocol):
    """Who makes internal topics."""

    async def ensure_internal_topic(self, kind: ShardKind) -> int:
        """
        The revision of an image that has the topic.

        Raises:
            HeadraceError: there is none, as far as known; ask again.
        """
        ...


class Coordinators:
    """One for the broker."""

    def __init__(
        self, replicas: Replicas, follower: ImageApplier, controller: InternalTopics, tasks: TaskRunner
    ) -> None:
        self._replicas = replicas
        self._follower = follower
        self._controller = controller
        self._tasks = tasks
        self._making: dict[ShardKind, asyncio.Task[HeadraceError | None]] = {}

    async def find(self, kind: ShardKind, keys: Sequence[str], rights: Rights = EVERYTHING) -> list[FoundCoordinator]:
        """
        One answer per key, in order. For keys that the caller may not describe no topic is made.

        Raises:
            Rejected: no keys, or too many.
        """
        if not 1 <= len(keys) <= KEYS_PER_REQUEST_MAX:
            raise Rejected(f"a request takes 1 to {KEYS_PER_REQUEST_MAX} keys, not {len(keys)}; split it")
        right, missing = Right(rights, Operation.DESCRIBE, _TYPES[kind]), None
        if self._replicas.image.topic(INTERNAL_TOPICS[kind]) is None and any(map(right.may, keys)):
            missing = await self._wait_made(kind)
        found = [
            coordinator_of(kind, key, self._replicas.image)
            if right.may(key)
            else FoundCoordinator(key[:KEY_CHARS_MAX], error=right.refusal(key))
            for key in keys
        ]
        if missing is None:
            return found
        return [FoundCoordinator(one.key, error=missing) if _unknown_shard(one) else one for one in found]

    async def make(self, kind: ShardKind) -> None:
        """
        Have the internal topic of ``kind`` made, and wait a while until it is there.

        Raises:
            CoordinatorNotAvailable: it is not there yet; try again.
        """
        error = await self._wait_made(kind)
        if error is not None:
            raise error

    async def _wait_made(self, kind: ShardKind) -> HeadraceError | None:
        """None: the topic is there; else why not."""
        try:
            async with limit_s(CALLER_WAIT_S):
                return await asyncio.shield(self._make(kind))
        except TimeoutError:
            return CoordinatorNotAvailable(f"topic {INTERNAL_TOPICS[kind]} is still being made; try again in a moment")

    def _make(self, kind: ShardKind) -> asyncio.Task[HeadraceError | None]:
        making = self._making.get(kind)
        if making is None or making.done():
            making = self._making[kind] = self._tasks.start(self._ensure(kind), name=f"make-{kind.value}-topic")
        return making

    async def _ensure(self, kind: ShardKind) -> HeadraceError | None:
        try:
            revision = await self._controller.ensure_internal_topic(kind)
        except HeadraceError as error:
            return CoordinatorNotAvailable(f"topic {INTERNAL_TOPICS[kind]} could not be made: {error}")
        await self._follower.wait_for_image(revision)
        return None


def _unknown_shard(found: FoundCoordinator) -> bool:
    return isinstance(found.error, CoordinatorNotAvailable) and found.shard < 0
