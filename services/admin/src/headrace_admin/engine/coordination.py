"""
Asks the coordinators of groups, or those of transactions, wherever they are: found through any broker, and found anew
when a shard has moved.

Called by ``groups``, ``resets`` and ``transactions``. What may be done twice is asked again also after an answer was
lost; what may not is asked again only where it surely was not done. Keys are group ids or transactional ids.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

from headrace_admin.ports import Brokers, Cluster, CoordinatorPlace
from headrace_common.core.errors import (
    CoordinatorLoading,
    CoordinatorNotAvailable,
    ErrorCode,
    HeadraceError,
    NetworkFailed,
    NotCoordinator,
    UnknownOutcome,
    error_for,
)
from headrace_common.core.ids import NO_NODE, NodeId
from headrace_common.core.image import INTERNAL_TOPICS, ClusterImage, NodeKey, Role, ShardKey, ShardKind
from headrace_common.rpc.convert import endpoint_from_proto
from headrace_common.runtime.access_gate import by_itself
from headrace_common.runtime.clock import Clock, limit_ms
from headrace_proto.v1 import broker_pb2, errors_pb2

R = TypeVar("R")
Answers: TypeAlias = Mapping[str, R | HeadraceError]
Ask: TypeAlias = Callable[[CoordinatorPlace, Sequence[str]], Awaitable[Answers[R]]]
"""Asks one coordinator about some keys."""

KEYS_PER_REQUEST_MAX: Final = 1_000
PATIENCE_MS: Final = 15_000.0
"""How long a shard may be on its way to another coordinator."""
_BROKERS_TRIED_MAX: Final = 3
_PAUSE_MS: Final = 50.0
_PAUSE_MS_MAX: Final = 1_000.0
_IMAGE_WAIT_MS: Final = 500.0
_NOT_DONE: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS})
_ELSEWHERE: Final = _NOT_DONE | {ErrorCode.COORDINATOR_NOT_AVAILABLE}
_TYPES: Final = {ShardKind.GROUPS: broker_pb2.GROUP, ShardKind.TRANSACTIONS: broker_pb2.TRANSACTION}
LIST_MS_MAX: Final = 5_000.0
_AWAY_LIST_MS_MAX: Final = 1_000.0
"""A coordinator that is fenced seldom answers; who lists all must not wait for it."""


class Listing(Protocol):
    """A coordinator's list."""

    @property
    def loading(self) -> Sequence[int]:
        """Shards that it has and does not serve yet."""
        ...


L = TypeVar("L", bound=Listing)


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A shard of which nothing is known."""

    shard: int
    coordinator: NodeId | None
    """None: nobody has it."""
    error: HeadraceError


@dataclass(frozen=True, slots=True)
class Said(Generic[L]):
    """What each coordinator listed, and the shards that are missing, by number."""

    lists: Mapping[NodeId, L]
    unanswered: tuple[Unanswered, ...]


class Coordination:
    """Of one kind of shards. Stateless; any number of calls at one time on one event loop."""

    def __init__(
        self,
        kind: ShardKind,
        cluster: Cluster,
        brokers: Brokers,
        clock: Clock,
        patience_ms: float = PATIENCE_MS,
    ) -> None:
        self._kind = kind
        self._cluster = cluster
        self._brokers = brokers
        self._clock = clock
        self._patience_ms = patience_ms

    async def any_shards(self) -> bool:
        """Whether there can be any key: the first one makes the internal topic, and only looking must not."""
        image = self._cluster.image
        name = INTERNAL_TOPICS[self._kind]
        if image.topic(name) is None:
            image = await self._cluster.caught_up(_IMAGE_WAIT_MS)
        return image.topic(name) is not None

    async def all(self, ask: Callable[[CoordinatorPlace], Awaitable[L]], *, ms_max: float = LIST_MS_MAX) -> Said[L]:
        """The lists of all coordinators that have shards, at once; ``ms_max``: how long one may take."""
        if not await self.any_shards():
            return Said({}, ())
        before = self._cluster.image
        owners, unanswered = _owners(before, self._kind)
        asked = sorted(set(owners.values()))
        said = dict(zip(asked, await asyncio.gather(*(self._listed(c, ask, ms_max) for c in asked)), strict=True))
        now = await self._cluster.caught_up(min(ms_max, _IMAGE_WAIT_MS))
        for shard, owner in owners.items():
            answer, key = said[owner], ShardKey(self._kind, shard)
            if isinstance(answer, HeadraceError):
                unanswered.append(Unanswered(shard, owner, answer))
            elif shard in answer.loading:
                text = f"coordinator {owner} still reads shard {shard}; ask again in a moment"
                unanswered.append(Unanswered(shard, owner, CoordinatorLoading(text)))
            elif now.shards.get(key) != before.shards.get(key):  # who was asked may have let go of it before
                text = f"shard {shard} has moved away from coordinator {owner}; ask again in a moment"
                unanswered.append(Unanswered(shard, owner, NotCoordinator(text)))
        unanswered.sort(key=lambda u: u.shard)
        lists = {c: answer for c, answer in said.items() if not isinstance(answer, HeadraceError)}
        return Said(lists, tuple(unanswered))

    async def _listed(
        self, coordinator: NodeId, ask: Callable[[CoordinatorPlace], Awaitable[L]], ms_max: float
    ) -> L | HeadraceError:
        node = self._cluster.image.nodes.get(NodeKey(Role.COORDINATOR, coordinator))
        if node is None:
            return CoordinatorNotAvailable(f"coordinator {coordinator} is not registered any more; ask again")
        wait_ms = min(ms_max, _AWAY_LIST_MS_MAX) if node.fenced else ms_max
        try:
            async with limit_ms(wait_ms):
                return await ask(CoordinatorPlace(coordinator, node.inside))
        except TimeoutError:
            what = self._kind.name.lower()
            return NetworkFailed(f"coordinator {coordinator} did not tell its {what} within {wait_ms / 1_000:g} s")
        except HeadraceError as error:
            return error

    async def each(self, keys: Sequence[str], ask: Ask[R], *, repeatable: bool) -> dict[str, R | HeadraceError]:
        """
        The answer about each key, in the order of ``keys``; in place of one that failed, its error.

        Args:
            repeatable: the same may be asked again when an answer was lost.
        """
        deadline = self._clock.monotonic_ms() + self._patience_ms
        done: dict[str, R | HeadraceError] = {}
        left, pause_ms = list(dict.fromkeys(keys)), _PAUSE_MS
        while True:
            places = await self._places(left)
            done.update(await self._round(places, ask))
            left = [i for i in left if _again(places[i], done[i], repeatable)]
            remaining_ms = deadline - self._clock.monotonic_ms()
            if not left or remaining_ms <= 0:
                return {i: done[i] for i in keys}
            await self._clock.sleep_ms(min(pause_ms, remaining_ms))
            pause_ms = min(2 * pause_ms, _PAUSE_MS_MAX)

    async def one(self, key: str, ask: Callable[[CoordinatorPlace], Awaitable[R]], *, repeatable: bool) -> R:
        """
        The answer about one key.

        Raises:
            HeadraceError: what its coordinator said last.
        """

        async def asked(place: CoordinatorPlace, _: Sequence[str]) -> Answers[R]:
            return {key: await ask(place)}

        (answer,) = (await self.each([key], asked, repeatable=repeatable)).values()
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
            (place, ids[at : at + KEYS_PER_REQUEST_MAX])
            for place, ids in by_place.items()
            for at in range(0, len(ids), KEYS_PER_REQUEST_MAX)
        ]
        for answered in await asyncio.gather(*(_asked(ask, place, ids) for place, ids in chunks)):
            done.update(answered)
        return done

    async def _places(self, wanted: Sequence[str]) -> dict[str, CoordinatorPlace | HeadraceError]:
        places: dict[str, CoordinatorPlace | HeadraceError] = {}
        for at in range(0, len(wanted), KEYS_PER_REQUEST_MAX):
            keys = wanted[at : at + KEYS_PER_REQUEST_MAX]
            try:
                found = await self._find(broker_pb2.FindCoordinatorRequest(type=_TYPES[self._kind], keys=keys))
            except HeadraceError as error:
                places |= dict.fromkeys(keys, error)
                continue
            places |= {key: self._place(one) for key, one in zip(keys, found.coordinators, strict=True)}
        return places

    def _place(self, found: broker_pb2.CoordinatorOfKey) -> CoordinatorPlace | HeadraceError:
        """Brokers tell where clients find it; the image knows where it takes nodes."""
        if found.error != errors_pb2.NONE:
            return error_for(found.error, found.message)
        at = endpoint_from_proto(found.endpoint)
        node = self._cluster.image.nodes.get(NodeKey(Role.COORDINATOR, NodeId(found.coordinator)))
        return CoordinatorPlace(NodeId(found.coordinator), node.inside if node is not None and node.grpc == at else at)

    async def _find(self, request: broker_pb2.FindCoordinatorRequest) -> broker_pb2.FindCoordinatorResponse:
        """Ask brokers until one answers; as this node, for where a coordinator is tells nothing of its keys."""
        error: HeadraceError = CoordinatorNotAvailable("no broker is there to say who coordinates it; start one")
        brokers = [node.key.id for node in self._cluster.image.brokers() if not node.fenced]
        for broker in brokers[:_BROKERS_TRIED_MAX]:
            try:
                with by_itself():
                    return await self._brokers.ask(broker, lambda stub: stub.FindCoordinator, request)
            except UnknownOutcome as silent:
                error = silent
        raise error


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


def _owners(image: ClusterImage, kind: ShardKind) -> tuple[dict[int, NodeId], list[Unanswered]]:
    """Who has each shard; and those that nobody has."""
    topic = image.topic(INTERNAL_TOPICS[kind])
    owners: dict[int, NodeId] = {}
    nobody: list[Unanswered] = []
    for n in range(topic.partition_count if topic is not None else 0):
        shard = image.shards.get(ShardKey(kind, n))
        if shard is None or shard.owner == NO_NODE:
            text = f"no coordinator has shard {n}; start one, or wait for the controller to give it to another"
            nobody.append(Unanswered(n, None, CoordinatorNotAvailable(text)))
        else:
            owners[n] = shard.owner
    return owners, nobody
