"""
Asks the coordinators of groups, wherever they are: found through any broker, and found anew when a shard has moved.

Called by ``groups`` and ``resets``. What may be done twice is asked again also after an answer was lost; what may not
is asked again only where it surely was not done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeAlias, TypeVar

from headrace_admin.ports import Brokers, Cluster, CoordinatorPlace
from headrace_common.core.errors import CoordinatorNotAvailable, ErrorCode, HeadraceError, UnknownOutcome, error_for
from headrace_common.core.ids import Endpoint, NodeId
from headrace_common.core.image import INTERNAL_TOPICS, ShardKind
from headrace_common.runtime.clock import Clock
from headrace_proto.v1 import broker_pb2, errors_pb2

R = TypeVar("R")
Answers: TypeAlias = Mapping[str, R | HeadraceError]
Ask: TypeAlias = Callable[[CoordinatorPlace, Sequence[str]], Awaitable[Answers[R]]]
"""Asks one coordinator about some groups."""

GROUPS_PER_REQUEST_MAX: Final = 1_000
PATIENCE_MS: Final = 15_000.0
"""How long a shard may be on its way to another coordinator."""
_BROKERS_TRIED_MAX: Final = 3
_PAUSE_MS: Final = 50.0
_PAUSE_MS_MAX: Final = 1_000.0
_IMAGE_WAIT_MS: Final = 500.0
_NOT_DONE: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS})
_ELSEWHERE: Final = _NOT_DONE | {ErrorCode.COORDINATOR_NOT_AVAILABLE}


class Coordination:
    """Stateless; any number of calls at one time on one event loop."""

    def __init__(self, cluster: Cluster, brokers: Brokers, clock: Clock, patience_ms: float = PATIENCE_MS) -> None:
        self._cluster = cluster
        self._brokers = brokers
        self._clock = clock
        self._patience_ms = patience_ms

    async def any_groups(self) -> bool:
        """Whether there can be any group: the first one makes the internal topic, and only looking must not."""
        image = self._cluster.image
        name = INTERNAL_TOPICS[ShardKind.GROUPS]
        if image.topic(name) is None:
            image = await self._cluster.newer(image.revision, _IMAGE_WAIT_MS)
        return image.topic(name) is not None

    async def each(self, group_ids: Sequence[str], ask: Ask[R], *, repeatable: bool) -> dict[str, R | HeadraceError]:
        """
        The answer about each group, in the order of ``group_ids``; in place of one that failed, its error.

        Args:
            repeatable: the same may be asked again when an answer was lost.
        """
        deadline = self._clock.monotonic_ms() + self._patience_ms
        done: dict[str, R | HeadraceError] = {}
        left, pause_ms = list(dict.fromkeys(group_ids)), _PAUSE_MS
        while True:
            places = await self._places(left)
            done.update(await self._round(places, ask))
            left = [i for i in left if _again(places[i], done[i], repeatable)]
            remaining_ms = deadline - self._clock.monotonic_ms()
            if not left or remaining_ms <= 0:
                return {i: done[i] for i in group_ids}
            await self._clock.sleep_ms(min(pause_ms, remaining_ms))
            pause_ms = min(2 * pause_ms, _PAUSE_MS_MAX)

    async def one(self, group_id: str, ask: Callable[[CoordinatorPlace], Awaitable[R]], *, repeatable: bool) -> R:
        """
        The answer about one group.

        Raises:
            HeadraceError: what its coordinator said last.
        """

        async def asked(place: CoordinatorPlace, _: Sequence[str]) -> Answers[R]:
            return {group_id: await ask(place)}

        (answer,) = (await self.each([group_id], asked, repeatable=repeatable)).values()
        if isinstance(answer, HeadraceError):
            raise answer
        return answer

    async def _round(
        self, places: Mapping[str, CoordinatorPlace | HeadraceError], ask: Ask[R]
    ) -> dict[str, R | HeadraceError]:
        done: dict[str, R | HeadraceError] = {i: p for i, p in places.items() if isinstance(p, HeadraceError)}
        by_place: dict[CoordinatorPlace, list[str]] = {}
        for i, place in places.items():
            if not isinstance(place, HeadraceError):
                by_place.setdefault(place, []).append(i)
        chunks = [
            (place, ids[at : at + GROUPS_PER_REQUEST_MAX])
            for place, ids in by_place.items()
            for at in range(0, len(ids), GROUPS_PER_REQUEST_MAX)
        ]
        for answered in await asyncio.gather(*(_asked(ask, place, ids) for place, ids in chunks)):
            done.update(answered)
        return done

    async def _places(self, group_ids: Sequence[str]) -> dict[str, CoordinatorPlace | HeadraceError]:
        places: dict[str, CoordinatorPlace | HeadraceError] = {}
        for at in range(0, len(group_ids), GROUPS_PER_REQUEST_MAX):
            keys = group_ids[at : at + GROUPS_PER_REQUEST_MAX]
            try:
                found = await self._find(broker_pb2.FindCoordinatorRequest(type=broker_pb2.GROUP, keys=keys))
            except HeadraceError as error:
                places |= dict.fromkeys(keys, error)
                continue
            places |= {key: _place(one) for key, one in zip(keys, found.coordinators, strict=True)}
        return places

    async def _find(self, request: broker_pb2.FindCoordinatorRequest) -> broker_pb2.FindCoordinatorResponse:
        """Ask brokers until one answers."""
        error: HeadraceError = CoordinatorNotAvailable("no broker is there to say who coordinates the group; start one")
        brokers = [node.key.id for node in self._cluster.image.brokers() if not node.fenced]
        for broker in brokers[:_BROKERS_TRIED_MAX]:
            try:
                return await self._brokers.find_coordinator(broker, request)
            except UnknownOutcome as silent:
                error = silent
        raise error


def _place(found: broker_pb2.CoordinatorOfKey) -> CoordinatorPlace | HeadraceError:
    if found.error != errors_pb2.NONE:
        return error_for(found.error, found.message)
    return CoordinatorPlace(NodeId(found.coordinator), Endpoint(found.endpoint.host, found.endpoint.port))


async def _asked(ask: Ask[R], place: CoordinatorPlace, ids: Sequence[str]) -> Answers[R]:
    try:
        return await ask(place, ids)
    except HeadraceError as error:
        return dict.fromkeys(ids, error)


def _again(place: CoordinatorPlace | HeadraceError, answer: object, repeatable: bool) -> bool:
    """Whether a group's coordinator is to be asked once more."""
    if not isinstance(answer, HeadraceError):
        return False
    if isinstance(place, HeadraceError):
        return place.retriable  # it was not even found
    if repeatable:
        return answer.code in _ELSEWHERE or isinstance(answer, UnknownOutcome)
    return answer.code in _NOT_DONE
