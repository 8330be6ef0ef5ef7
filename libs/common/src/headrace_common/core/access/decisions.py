"""
What a process asks for each request: the decisions of one generation, each made once.

Services hold one of these and give it each new ``Access``; it belongs to the event loop that calls it.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, NamedTuple, TypeVar

from headrace_common.core.access.grants import Scope
from headrace_common.core.access.policy import NO_GRANTS, Policy, compile_policy
from headrace_common.core.access.principal import Grantee
from headrace_common.core.access.resources import RESOURCE_NAME_CHARS_MAX, Operation, ResourceType
from headrace_common.core.access.state import Access, Caller, is_beyond_vouching

DECISIONS_MAX: Final = 100_000
POLICIES_MAX: Final = 1_000
"""Of each kind: policies, scopes, callers."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Standing(NamedTuple):
    """What is known of a caller before it asks for anything."""

    is_blocked: bool
    is_super: bool
    policy: Policy
    scope: Policy | None
    vouched: bool = False

    def decide(self, operation: Operation, type: ResourceType, name: str) -> bool:
        """Blocked, no; not in the key's scope, no; super user, yes; else what the policy says."""
        if self.vouched and is_beyond_vouching(operation, type):
            return False
        if self.is_blocked or (self.scope is not None and not self.scope.decide(operation, type, name)):
            return False
        return self.is_super or self.policy.decide(operation, type, name)

    def decide_anywhere(self, operation: Operation, type: ResourceType) -> bool:
        """As ``decide``, of any name. The names that the scope and the policy allow may be different ones."""
        if self.vouched and is_beyond_vouching(operation, type):
            return False
        if self.is_blocked or (self.scope is not None and not self.scope.decide_anywhere(operation, type)):
            return False
        return self.is_super or self.policy.decide_anywhere(operation, type)


class Decisions:
    """Decides, and remembers: bounded, and emptied with each new ``Access``."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._decisions: dict[tuple[Caller, int, int, str], bool] = {}
        self._standings: dict[Caller, Standing] = {}
        self._policies: dict[tuple[frozenset[Grantee], str | None], Policy] = {}
        self._scopes: dict[tuple[Scope, str | None], Policy] = {}

    @property
    def generation(self) -> int:
        return self._access.generation

    def renew(self, access: Access) -> None:
        """Decide by another ``Access`` from now on."""
        self._access = access
        for cache in (self._decisions, self._standings, self._policies, self._scopes):
            cache.clear()

    def decide(self, caller: Caller, operation: Operation, type: ResourceType, name: str) -> bool:
        """
        Whether the caller may.

        Raises:
            Rejected: there are more grants for it than a policy takes; it may do nothing until there are fewer.
        """
        key = (caller, operation.bit, type.slot, name)
        known = self._decisions.get(key)
        if known is not None:
            return known
        decision = self.standing(caller).decide(operation, type, name)
        if len(name) <= RESOURCE_NAME_CHARS_MAX:
            _remember(self._decisions, key, decision, DECISIONS_MAX)
        return decision

    def decide_anywhere(self, caller: Caller, operation: Operation, type: ResourceType) -> bool:
        """
        Whether there may be a name with which ``decide`` says yes. Not remembered, so not for each batch.

        Raises:
            Rejected: as ``decide``.
        """
        return self.standing(caller).decide_anywhere(operation, type)

    def standing(self, caller: Caller) -> Standing:
        """
        What decides about a caller at this generation.

        Raises:
            Rejected: as ``decide``.
        """
        known = self._standings.get(caller)
        if known is not None:
            return known
        grantees = caller.grantees
        is_blocked, is_super = self._access.is_blocked(grantees), self._access.is_super(grantees)
        standing = Standing(
            is_blocked,
            is_super,
            NO_GRANTS if is_blocked or is_super else self._policy(grantees, caller.host),
            None if caller.scope is None else self._scope(caller.scope, caller.host),
            caller.vouched,
        )
        return _remember(self._standings, caller, standing, POLICIES_MAX)

    def _policy(self, grantees: frozenset[Grantee], host: str | None) -> Policy:
        if host is not None and all(grant.host != host for grant in self._access.grants(grantees)):
            host = None  # one policy for all places that no grant names
        known = self._policies.get((grantees, host))
        if known is not None:
            return known
        policy = compile_policy(self._access.grants(grantees), host)
        return _remember(self._policies, (grantees, host), policy, POLICIES_MAX)

    def _scope(self, scope: Scope, host: str | None) -> Policy:
        known = self._scopes.get((scope, host))
        if known is not None:
            return known
        return _remember(self._scopes, (scope, host), compile_policy(scope.grants, host), POLICIES_MAX)


def _remember(cache: dict[K, V], key: K, value: V, entries_max: int) -> V:
    if len(cache) >= entries_max:
        cache.clear()
    cache[key] = value
    return value
