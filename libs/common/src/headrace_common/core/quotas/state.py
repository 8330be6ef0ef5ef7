"""
All quotas that are set, and which of them holds for whom.

Of a rate one place holds, in Kafka's order of precedence (KIP-55): the first of these that is set for that rate. Who
shares it is what the place names or has a default for: under ``users/*`` each user has a share of its own, and under
``users/*/clients/*`` each client id of each user.

====================================  ===================
place                                 who shares it
====================================  ===================
``users/USER/clients/CLIENT``         user and client id
``users/USER/clients/*``              user and client id
``users/USER``                        user
``users/*/clients/CLIENT``            user and client id
``users/*/clients/*``                 user and client id
``users/*``                           user
``clients/CLIENT``                    client id
``clients/*``                         client id
====================================  ===================

Who shows no client id has the defaults for client ids, as Kafka documents; Kafka's code takes no quota at all for
such a client where ``users/USER/clients/*`` is set. Limits are other than rates: those of *all* prefixes of a name hold
together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from headrace_common.core.access.principal import Principal
from headrace_common.core.access.resources import INTERNAL_PREFIX
from headrace_common.core.errors import ErrorCode, Rejected
from headrace_common.core.quotas.entities import DEFAULT, Clients, Entity, Prefix, client_id_of, has_quotas
from headrace_common.core.quotas.kinds import Limit, Quota, Rate, check_value

ENTITIES_MAX: Final = 10_000
BATCH_MAX: Final = 1_000

Group: TypeAlias = tuple[str, str]
"""Who shares a quota: a user and a client id, an empty text for what does not tell them apart."""
Values: TypeAlias = Mapping[Quota, float]
_Places: TypeAlias = dict[Rate, dict[tuple[str | None, str | None], float]]


class Holding(NamedTuple):
    """A rate that holds for somebody."""

    value: float
    group: Group
    """Who shares it."""
    entity: Entity
    """Where it is set."""


@dataclass(frozen=True, slots=True)
class Quotas:
    """What is set. It is never changed: ``alter`` gives the next one."""

    values: Mapping[Entity, Values] = field(default_factory=lambda: MappingProxyType({}))
    """No entity without a value, and none with a quota that it cannot have."""
    _clients: _Places = field(init=False, repr=False, compare=False, default_factory=dict)
    """Rates by user and client id."""
    _prefixes: dict[tuple[Limit, str], float] = field(init=False, repr=False, compare=False, default_factory=dict)
    _prefix_lengths: dict[Limit, list[int]] = field(init=False, repr=False, compare=False, default_factory=dict)
    """Ascending."""

    def __post_init__(self) -> None:
        for entity, values in self.values.items():
            for quota, value in values.items():
                match entity, quota:
                    case Clients(user, client_id), Rate():
                        self._clients.setdefault(quota, {})[user, client_id] = value
                    case Prefix(prefix), Limit():
                        self._prefixes[quota, prefix] = value
                        self._prefix_lengths.setdefault(quota, []).append(len(prefix))
        for limit, lengths in self._prefix_lengths.items():
            self._prefix_lengths[limit] = sorted(set(lengths))

    def find_rate(self, rate: Rate, user: Principal, client_id: str) -> Holding | None:
        """
        The one that holds for a user that shows a client id, empty if it shows none; None: it may be as fast as it can.

        To be asked once for a caller and generation (``metered.Metered``).
        """
        places = self._clients.get(rate)
        if places is None or not has_quotas(user):
            return None
        named, shown = str(user), client_id_of(client_id)
        for of_user, of_client in (
            (named, shown),
            (named, DEFAULT),
            (named, None),
            (DEFAULT, shown),
            (DEFAULT, DEFAULT),
            (DEFAULT, None),
            (None, shown),
            (None, DEFAULT),
        ):
            value = places.get((of_user, of_client))
            if value is not None:
                group = ("" if of_user is None else named, "" if of_client is None else shown)
                return Holding(value, group, Clients(of_user, of_client))
        return None

    def find_limits(self, limit: Limit, name: str) -> tuple[tuple[Prefix, float], ...]:
        """All that hold together for one more of such a name, by the prefix; none of an internal one."""
        if name.startswith(INTERNAL_PREFIX):
            return ()
        found = []
        for length in self._prefix_lengths.get(limit, ()):
            value = self._prefixes.get((limit, name[:length]))
            if value is not None and length <= len(name):
                found.append((Prefix(name[:length]), value))
        return tuple(found)


Change: TypeAlias = tuple[Entity, Mapping[Quota, float | None]]
"""Values of an entity; None takes one away (KIP-546)."""


def alter(before: Quotas, batch: Sequence[Change]) -> Quotas:
    """
    What is set after a batch, whole or not at all, in its order.

    Raises:
        Rejected: an entity cannot have a quota, a quota does not take a value, or something is over a bound.
    """
    if len(batch) > BATCH_MAX:
        raise _too_many("a batch", "changes of quotas", len(batch), BATCH_MAX)
    values = dict(before.values)
    for entity, changes in batch:
        of_entity = {**values.pop(entity, {}), **check_values(entity, changes)}
        for quota in [quota for quota, value in changes.items() if value is None]:
            of_entity.pop(quota, None)
        if of_entity:
            values[entity] = of_entity
    if len(values) > ENTITIES_MAX:
        raise _too_many("the cluster", "quotas", len(values), ENTITIES_MAX)
    return Quotas(values)


def check_values(entity: Entity, values: Mapping[Quota, float | None]) -> dict[Quota, float]:
    """
    What is not None of these, each in its one form.

    Raises:
        Rejected: the entity cannot have one of these quotas, or a quota does not take its value.
    """
    for quota in values:
        if quota not in entity.quotas:
            takes = ", ".join(sorted(one.value for one in entity.quotas))
            raise Rejected(f"{entity} has no {quota.value}; it takes {takes}")
    return {quota: check_value(quota, value) for quota, value in values.items() if value is not None}


def _too_many(who: str, what: str, count: int, most: int) -> Rejected:
    return Rejected(f"{who} would have {count} {what}; {most} is the most", code=ErrorCode.POLICY_VIOLATION)
