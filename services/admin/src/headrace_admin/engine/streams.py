"""
Programs of ``headrace.streams``: which there are, who has their tasks, and what they have kept.

An app is a work group to whose name internal topics belong. Its workers say to the group where they answer questions
about state; whoever has a task is asked for it. While a task moves, and when a worker has died, the group is looked up
again and the worker that it names then is asked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from headrace_admin.engine.groups import Groups
from headrace_admin.ports import Cluster, StoreFacts, Workers
from headrace_common.core.access.control import EVERYTHING, Rights
from headrace_common.core.access.resources import Operation, ResourceType
from headrace_common.core.errors import (
    ErrorCode,
    HeadraceError,
    Kind,
    LeaderNotAvailable,
    NotFound,
    Rejected,
    RequestTimedOut,
)
from headrace_common.core.worker_address import WorkerAddress
from headrace_common.runtime.clock import Clock, limit_ms
from headrace_proto.v1 import coordinator_pb2, streams_pb2

T = TypeVar("T")

_SUFFIXES: Final = (".changelog", ".repartition")
_AGAIN: Final = (Kind.MOVED, Kind.BUSY, Kind.UNKNOWN)
_PATIENCE_MS: Final = 30_000.0
"""So long a question waits for a task that moves; as long as that of a program's own ``Stores``."""
_EMPTY_MS: Final = 3_000.0
"""So long a group without members may be between the workers of a restart."""
_PAUSE_MS: Final = 200.0


class NoWorkers(LeaderNotAvailable, code=ErrorCode.LEADER_NOT_AVAILABLE):
    """No worker of the app is a member of its group."""


@dataclass(frozen=True, slots=True)
class AppFacts:
    """A program, as the cluster sees it."""

    app: str
    members: int
    topics: Sequence[str]
    """That it has made for itself."""


class Streams:
    """Any number of calls at one time on one event loop."""

    def __init__(self, cluster: Cluster, groups: Groups, workers: Workers, clock: Clock) -> None:
        self._cluster = cluster
        self._groups = groups
        self._workers = workers
        self._clock = clock

    async def apps(self, rights: Rights = EVERYTHING) -> list[AppFacts]:
        """
        By name, with those of their topics that the caller may describe.

        Raises:
            HeadraceError: a shard of groups could not be asked, so that apps would be missing.
        """
        listing = await self._groups.listing()
        for missing in listing.unanswered:
            raise missing.error
        work = {g.group.group_id: g.group for g in listing.groups if g.group.protocol == coordinator_pb2.WORK}
        topics: dict[str, list[str]] = {}
        for topic in self._cluster.image.topics.values():
            owner = owner_of(topic.name, work)
            if owner is not None:
                topics.setdefault(owner, []).append(topic.name)
        return [AppFacts(app, work[app].members, _shown(topics[app], rights)) for app in sorted(topics)]

    async def describe(self, app: str) -> coordinator_pb2.GroupDescription:
        """
        The group of an app: its workers and tasks.

        Raises:
            NotFound: there is no such app.
        """
        described = (await self._groups.describe([app]))[app]
        if isinstance(described, HeadraceError):
            raise described
        if described.protocol != coordinator_pb2.WORK:
            raise NotFound(f"the group {app!r} is no app of streams: its members share no tasks")
        return described

    async def stores(self, app: str) -> Sequence[StoreFacts]:
        """
        What an app keeps.

        Raises:
            NotFound: there is no such app.
            LeaderNotAvailable: no worker runs for 3 s, or none answers within 30 s.
            Rejected: workers do not listen for questions.
            HeadraceError: what a worker said last, after 30 s.
        """
        return await self._persist(app, lambda: self._stores(app))

    async def rows(self, app: str, store: str, columns: Sequence[str]) -> Sequence[dict[str, Any]]:
        """
        The rows of a key, as of the last commit; of windows there are several.

        Args:
            columns: of the key, as texts.

        Raises:
            NotFound: there is no such app, no such store, or no row of this key.
            Rejected: the key has other columns; or workers do not listen for questions.
            LeaderNotAvailable: no worker runs for 3 s, or none has the task for 30 s.
            HeadraceError: what a worker said last, after 30 s.
        """
        found = await self._persist(app, lambda: self._rows(app, store, columns))
        if not found:
            raise NotFound(f"{app} has nothing in {store!r} for the key {', '.join(columns)}")
        return found

    async def _stores(self, app: str) -> Sequence[StoreFacts]:
        return await self._workers.stores(app, _anybody(app, _owners(await self.describe(app))))

    async def _rows(self, app: str, store: str, columns: Sequence[str]) -> Sequence[dict[str, Any]]:
        owners = _owners(await self.describe(app))
        anybody = _anybody(app, owners)
        stores = {one.name: one for one in await self._workers.stores(app, anybody)}
        if store not in stores:
            raise NotFound(f"{app} has no store {store!r}; there are: {', '.join(stores) or 'none'}")
        at = await self._workers.locate(app, anybody, streams_pb2.LocateKeyRequest(store=store, columns=columns))
        task = f"{stores[store].sub_topology}/{at.partition}"
        if task not in owners:
            raise LeaderNotAvailable(f"no worker of {app} has the task {task} now")
        request = streams_pb2.QueryStoreRequest(store=store, partition=at.partition, key=at.key)
        return await self._workers.rows(app, owners[task], request)

    async def _persist(self, app: str, ask: Callable[[], Awaitable[T]]) -> T:
        """The answer, asked for again while a task moves or the worker that has it is dead."""
        now_ms = self._clock.monotonic_ms
        deadline = now_ms() + _PATIENCE_MS
        empty_since: float | None = None
        last: HeadraceError = RequestTimedOut(f"no worker of {app} answered within {_PATIENCE_MS / 1_000:g} s")
        while (remaining_ms := deadline - now_ms()) > 0:
            try:
                async with limit_ms(remaining_ms):
                    return await ask()
            except TimeoutError:
                break
            except HeadraceError as error:
                if error.kind not in _AGAIN:
                    raise
                last = error
            if not isinstance(last, NoWorkers):
                empty_since = None
            elif empty_since is None:
                empty_since = now_ms()
            elif now_ms() - empty_since >= _EMPTY_MS:
                break
            await self._clock.sleep_ms(_PAUSE_MS)
        raise last


def _shown(topics: Iterable[str], rights: Rights) -> list[str]:
    return sorted(topic for topic in topics if rights.shows(Operation.DESCRIBE, ResourceType.TOPIC, topic))


def owner_of(topic: str, apps: Iterable[str]) -> str | None:
    """The app that a topic belongs to by its name: of two that fit, the one with the longer name."""
    if not topic.endswith(_SUFFIXES):
        return None
    return max((app for app in apps if topic.startswith(f"{app}.")), key=len, default=None)


def _owners(group: coordinator_pb2.GroupDescription) -> Mapping[str, WorkerAddress]:
    """
    Where each task is asked for.

    Raises:
        NoWorkers: none runs.
        Rejected: they do not listen.
    """
    app = group.group_id
    if not group.members:
        raise NoWorkers(f"no worker of {app} is a member of its group")
    at = {member.member_id: endpoint for member in group.members if (endpoint := _endpoint(member.endpoint))}
    if not at:
        raise Rejected(f"the workers of {app} answer no questions; start them with --query-listen HOST:PORT")
    return {item.item.id: at[item.owner] for item in group.items if item.owner in at}


def _endpoint(text: str) -> WorkerAddress | None:
    """Members may say anything."""
    try:
        return WorkerAddress.parse(text)
    except ValueError:
        return None


def _anybody(app: str, owners: Mapping[str, WorkerAddress]) -> WorkerAddress:
    for endpoint in owners.values():
        return endpoint
    raise LeaderNotAvailable(f"no worker of {app} that answers has a task")
