"""
What ``AdminClient.alter_access`` takes: rules, roles that are bound, roles of one's own, blocks; made so, or undone.

Principals are written ``Type:name`` (``User:alice``, ``User:*`` for all users), patterns as a name, as the beginning of
names with a ``*`` behind it, or as ``*``::

    >>> from headrace import access
    >>> changes = [
    ...     access.Put(access.allow("User:alice", ["READ"], "TOPIC", "orders*")),
    ...     access.Put(access.bind("User:bob", "producer", "orders")),
    ...     access.Remove(access.block("User:carol")),
    ... ]
    >>> print(changes[0].item.grant)
    allow READ TOPIC orders*
    >>> print(changes[1].item)
    role producer on TOPIC orders*, TRANSACTIONAL_ID orders*

What cannot be raises ``Rejected`` when it is made.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from headrace_common.core.access.changes import Block, Change, Put, Remove, Rule
from headrace_common.core.access.grants import Effect, Grant, host_of
from headrace_common.core.access.principal import parse_grantee, parse_principal
from headrace_common.core.access.resources import CLUSTER_NAME, Target, operation_set, parse_pattern
from headrace_common.core.access.roles import BUILT_IN_ROLES, Binding, Role, targets_for
from headrace_common.core.errors import Rejected
from headrace_common.rpc.convert_access import operation_of, type_of

__all__ = ["Change", "Put", "Remove", "allow", "bind", "block", "deny", "grant", "role"]


def allow(
    principal: str, operations: Collection[str], type: str, pattern: str = CLUSTER_NAME, *, host: str | None = None
) -> Rule:
    """``principal`` may do these, from this address or (None) from any."""
    return Rule(parse_grantee(principal), grant(operations, type, pattern, host=host))


def deny(
    principal: str, operations: Collection[str], type: str, pattern: str = CLUSTER_NAME, *, host: str | None = None
) -> Rule:
    """``principal`` may not do these, whatever else allows it."""
    return Rule(parse_grantee(principal), _grant(Effect.DENY, operations, type, pattern, host))


def grant(operations: Collection[str], type: str, pattern: str = CLUSTER_NAME, *, host: str | None = None) -> Grant:
    """What a rule allows, or the scope of a key."""
    return _grant(Effect.ALLOW, operations, type, pattern, host)


def bind(principal: str, role: str, name: str | None = None, *, on: Collection[tuple[str, str]] = ()) -> Binding:
    """
    Give a role.

    Args:
        name: for built-in roles that take one: a prefix; of ``streams`` an app, of ``connect`` a Connect cluster.
        on: types and patterns, one by one. Neither: the role covers all.
    """
    targets = frozenset(Target(type_of(type), parse_pattern(pattern)) for type, pattern in on)
    if name is not None:
        if role not in BUILT_IN_ROLES:
            raise Rejected(f"role {role[:80]!r} takes no single name; name its resources with their types")
        targets |= targets_for(role, name)
    return Binding(parse_grantee(principal), role, targets)


def role(name: str, operations: Mapping[str, Collection[str]]) -> Role:
    """A role of one's own: what it gives on the targets of a binding, by their type."""
    return Role(name, {type_of(type): operation_set(*map(operation_of, some)) for type, some in operations.items()})


def block(principal: str) -> Block:
    """Somebody, or a group, may do nothing."""
    return Block(parse_principal(principal))


def _grant(effect: Effect, operations: Collection[str], type: str, pattern: str, host: str | None) -> Grant:
    some = operation_set(*map(operation_of, operations))
    return Grant(effect, some, type_of(type), parse_pattern(pattern), None if host is None else host_of(host))
