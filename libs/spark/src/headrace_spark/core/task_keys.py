"""
Keys that a query's tasks show in place of what its driver shows: what they may be used for, for how long, and whether
one may be made at all.

Where a query is given ``headrace.token``, the driver makes them, and its own credential stays with it. Called by
``reading``, ``writing`` and ``adapters.sdk_keys``, on the driver alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from headrace_common.core.access.grants import Effect, Grant
from headrace_common.core.access.resources import (
    EVERY_NAME,
    INTERNAL_PREFIX,
    Operation,
    OperationSet,
    Pattern,
    ResourceType,
    literal,
    operation_set,
    prefix,
)
from headrace_common.core.errors import CredentialsExpired, HeadraceError
from headrace_common.core.secret import Secret
from headrace_spark.core.options import ConnectorOptions

HOUR_MS: Final = 3_600_000
STREAM_LIFE_MS: Final = HOUR_MS
BATCH_LIFE_MS: Final = 24 * HOUR_MS
"""Nobody tells when a batch query ends, or a DataFrame is used for the last time."""
STREAM_SHARED: Final = 2 / 3
"""The part of its life in which a key is given to further micro-batches: the last of them has the rest."""
BATCH_SHARED: Final = 1 / 24
"""Of batch queries: few keys where they follow on each other, as in ``foreachBatch``."""
TOPICS_MAX: Final = 100
"""Of more topics a key names what their names begin with: a row of the cluster's has to stay small."""
OWNED_MAX: Final = 500
"""Keys of one owner, of 1,000 that it may have: from here on none are made, for people need some too."""
OVER_MAX: Final = 50
"""Keys of ours that are over are deleted when there are so many: a deletion has all nodes decide anew."""
DELETED_MAX: Final = 500
MARGIN_MS: Final = 60_000
"""A key ends so long before the one it is made with: the driver's clock is not that of the cluster."""
AS_BEFORE_MS: Final = 600_000
"""How long what the driver shows is given to tasks where no key was made, before one is asked for again."""
NOTE: Final = "spark: tasks of a query"
"""Tells these keys from others of their owner."""
OPEN: Final = "open"
"""A cluster's mode: it asks for no key."""

Scope = frozenset[Grant]


def reading_scope(topics: Collection[str]) -> Scope:
    """READ of these topics; of very many, of all whose names begin as theirs do."""
    return _scope(Operation.READ, ResourceType.TOPIC, _topics(topics))


def writing_scope(options: ConnectorOptions) -> Scope | None:
    """
    WRITE of the topic, and of the query's transactional ids, which are units' owners too.

    Without ``topic`` rows say where they go, and without ``transactionalId`` the names of transactions begin with the
    query's id, which Spark tells to tasks only: then all names. None: no scope can say it, since names of the system
    are allowed one by one.
    """
    if options.transactional and (options.transactional_id or "").startswith(INTERNAL_PREFIX):
        return None
    topics = [literal(options.topic)] if options.topic is not None else [EVERY_NAME]
    scope = _scope(Operation.WRITE, ResourceType.TOPIC, topics)
    return scope | _scope(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, _ids(options))


def _ids(options: ConnectorOptions) -> list[Pattern]:
    if not options.transactional:
        return []
    name = options.transactional_id
    if name is None:
        return [EVERY_NAME]
    owner = [] if name.endswith("*") else [literal(name)]  # no rule can name that one alone
    return [*owner, prefix(f"{name}/"), prefix(f"{name}.")]


def _topics(topics: Collection[str]) -> list[Pattern]:
    if len(topics) <= TOPICS_MAX:
        return [literal(topic) for topic in topics]
    single = [topic for topic in topics if topic.startswith(INTERNAL_PREFIX)]
    others = sorted(set(topics).difference(single))
    return [*([_beginning(others[0], others[-1])] if others else []), *map(literal, single)]


def _beginning(first: str, last: str) -> Pattern:
    """What all names begin with that sort between these two."""
    same = next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return prefix(first[:same]) if same else EVERY_NAME


def _scope(operation: Operation, type: ResourceType, patterns: Iterable[Pattern]) -> Scope:
    some: OperationSet = operation_set(operation)
    return frozenset(Grant(Effect.ALLOW, some, type, pattern) for pattern in patterns)


@dataclass(frozen=True, slots=True)
class Lives:
    """How long keys last."""

    life_ms: int
    shared_ms: int
    """So long after it was made, a key is given to further tasks."""

    @staticmethod
    def of(options: ConnectorOptions) -> Lives:
        """As the options say."""
        default, shared = (STREAM_LIFE_MS, STREAM_SHARED) if options.mode.streams else (BATCH_LIFE_MS, BATCH_SHARED)
        life_ms = options.task_key_lifetime_ms or default
        return Lives(life_ms, int(life_ms * shared))

    def until(self, end_ms: int | None, now_ms: float) -> Lives:
        """
        The same, of a key that ends before another does.

        Args:
            end_ms: the other's, in ms since the epoch; None: never.
        """
        left_ms = self.life_ms if end_ms is None else int(end_ms - now_ms) - MARGIN_MS
        return self if left_ms >= self.life_ms else Lives(left_ms, left_ms * self.shared_ms // self.life_ms)


@dataclass(frozen=True, slots=True)
class TaskKey:
    """What tasks are given to show."""

    shown: Secret
    scope: Scope
    until_ms: float
    """In monotonic ms: from then on another one is made."""
    end_ms: float
    """In monotonic ms: from then on it is over."""
    id: str | None = None
    """None: it is what the driver shows."""

    def serves(self, scope: Scope, now_ms: float) -> bool:
        """Whether further tasks may have it: it is no wider than they need."""
        return self.scope == scope and now_ms < self.until_ms


def explain_end(error: HeadraceError) -> HeadraceError:
    """What a task says that was given something to show which is over."""
    if not isinstance(error, CredentialsExpired):
        return error
    return CredentialsExpired(
        f"{error}. The driver gave it to this task: set 'taskKeyLifetime' above the time that a micro-batch, or the "
        "job, takes; of a DataFrame that is used for longer, call load() again"
    )


@dataclass(frozen=True, slots=True)
class Owned:
    """A key that the driver's principal has."""

    id: str
    note: str
    expires_ms: int | None
    """Unix time."""


def keys_over(owned: Collection[Owned], now_ms: float) -> list[str]:
    """The ids of keys of ours that are to be deleted: they are over, and many."""
    over = [
        key.id
        for key in owned
        if key.note == NOTE and key.expires_ms is not None and key.expires_ms + MARGIN_MS <= now_ms
    ]
    return over[:DELETED_MAX] if len(over) >= OVER_MAX else []
