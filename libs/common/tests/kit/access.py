"""Small worlds of access rules for properties, and the decision in the plain way, after the text of Kafka's ACLs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from hypothesis import strategies as st

from headrace_common.core.access.grants import Effect, Grant, Scope
from headrace_common.core.access.principal import Everyone, Grantee, Principal, PrincipalType
from headrace_common.core.access.resources import (
    CLUSTER_NAME,
    EVERY_NAME,
    OPERATIONS,
    Operation,
    OperationSet,
    Pattern,
    PatternKind,
    ResourceType,
    Target,
    literal,
    operation_set,
    operations_in,
    prefix,
)
from headrace_common.core.access.roles import BUILT_IN_ROLES, Binding, Role
from headrace_common.core.access.state import Access, Caller

ALICE: Final = Principal(PrincipalType.USER, "alice")
BOB: Final = Principal(PrincipalType.USER, "bob")
CERT: Final = Principal(PrincipalType.CERT, "alice")
STAFF: Final = Principal(PrincipalType.GROUP, "staff")
ALL_USERS: Final = Everyone(PrincipalType.USER)
ADMIN: Final = Principal(PrincipalType.USER, "admin")
GRANTEES: Final[tuple[Grantee, ...]] = (ALICE, BOB, CERT, STAFF, ALL_USERS)
HOSTS: Final = ("10.0.0.1", "10.0.0.2")
IMPOSSIBLE: Final = ("", "*", "a\0", "a\nb", "a\u200b", "e\u0301", "\ud800", "a" * 300)
IMPLIED: Final = {
    "DESCRIBE": {"DESCRIBE", "READ", "WRITE", "DELETE", "ALTER"},
    "DESCRIBE_CONFIGS": {"DESCRIBE_CONFIGS", "ALTER_CONFIGS"},
}


def allow(type: ResourceType, pattern: Pattern, *operations: Operation, host: str | None = None) -> Grant:
    return Grant(Effect.ALLOW, operation_set(*operations), type, pattern, host)


def deny(type: ResourceType, pattern: Pattern, *operations: Operation, host: str | None = None) -> Grant:
    return Grant(Effect.DENY, operation_set(*operations), type, pattern, host)


class Line(NamedTuple):
    """One grant in words."""

    effect: str
    operations: set[str]
    type: str
    kind: str
    name: str
    host: str | None


def _line(effect: str, operations: int, target: Target, host: str | None) -> Line:
    words = {operation.name for operation in operations_in(operations)}
    return Line(effect, words, target.type.name, target.pattern.kind.name, target.pattern.name, host)


def lines_of(access: Access, who: Grantee) -> Iterator[Line]:
    """All that is granted to one, rule by rule and role by role."""
    for grant in access.rules.get(who, ()):
        yield _line(grant.effect.name, grant.operations, Target(grant.type, grant.pattern), grant.host)
    for binding in access.bindings.get(who, ()):
        role = {**BUILT_IN_ROLES, **access.roles}[binding.role]
        for grant in role.fixed:
            yield _line("ALLOW", grant.operations, Target(grant.type, grant.pattern), None)
        for target in binding.targets:
            yield _line("ALLOW", role.operations[target.type], target, None)
    if isinstance(who, Principal) and who.type not in {PrincipalType.GROUP, PrincipalType.NODE}:
        yield Line("ALLOW", {"CREATE_TOKENS", "DESCRIBE_TOKENS"}, "PRINCIPAL", "LITERAL", str(who), None)


def _says(line: Line, host: str | None, operation: Operation, type: ResourceType, name: str) -> bool:
    if operation.name in {"ALL", "IDEMPOTENT_WRITE", "CLUSTER_ACTION"} or name in IMPOSSIBLE:
        return False
    if line.type != type.name or (line.host is not None and line.host != host):
        return False
    if line.kind == "LITERAL" and line.name != name:
        return False
    if line.kind == "PREFIX" and name[: len(line.name)] != line.name:
        return False
    if line.effect == "DENY":
        return bool(line.operations & {operation.name, "ALL"})
    if name[:2] == "__" and line.kind != "LITERAL":
        return False
    return bool(line.operations & (IMPLIED.get(operation.name, {operation.name}) | {"ALL"}))


def decide_plainly(access: Access, caller: Caller, operation: Operation, type: ResourceType, name: str) -> bool:
    """Read every grant, one after the other."""
    whose: list[Grantee] = [caller.principal, *caller.groups]
    if any(one in access.blocked for one in whose):
        return False
    if caller.scope is not None:
        scope = [_line("ALLOW", g.operations, Target(g.type, g.pattern), g.host) for g in caller.scope.grants]
        if not any(_says(line, caller.host, operation, type, name) for line in scope):
            return False
    if caller.principal.type in {PrincipalType.USER, PrincipalType.CERT}:
        whose.append(Everyone(caller.principal.type))
    for one in whose:
        if one in access.super_users or any(b.role == "superuser" for b in access.bindings.get(one, ())):
            return True
    lines = [line for one in whose for line in lines_of(access, one)]
    found = [line.effect for line in lines if _says(line, caller.host, operation, type, name)]
    return "DENY" not in found and "ALLOW" in found


NAMES: Final = ("a", "ab", "b", "_", "_a", "__", "__a", "é", "aé")
PRINCIPALS: Final = (str(ALICE), str(CERT), "Role:own")
OWN: Final = Role(
    "own",
    {
        ResourceType.TOPIC: operation_set(Operation.WRITE),
        ResourceType.GROUP: operation_set(Operation.READ, Operation.ALTER_CONFIGS),
    },
)


def _patterns(type: ResourceType) -> list[Pattern]:
    if type is ResourceType.CLUSTER:
        return [EVERY_NAME, literal(CLUSTER_NAME)]
    if type is ResourceType.PRINCIPAL:
        return [EVERY_NAME, *map(literal, PRINCIPALS), *map(prefix, ("U", "User:", "User:a", "Role:"))]
    return [EVERY_NAME, *map(literal, NAMES), *map(prefix, NAMES)]


def _reaches(pattern: Pattern) -> bool:
    return pattern.kind is not PatternKind.PREFIX or not pattern.name.startswith("__")


def _every_grant() -> Iterator[Grant]:
    for type in ResourceType:
        single = [operation_set(one) for one in (Operation.ALL, *operations_in(OPERATIONS[type]))]
        pair = operation_set(Operation.DESCRIBE, Operation.ALTER) & OPERATIONS[type]
        for operations in (*single, OperationSet(pair)):
            for pattern in _patterns(type):
                for host in (None, HOSTS[0]):
                    yield Grant(Effect.DENY, operations, type, pattern, host)
                    if _reaches(pattern):
                        yield Grant(Effect.ALLOW, operations, type, pattern, host)


EVERY_GRANT: Final = tuple(_every_grant())
names = st.sampled_from(NAMES)
asked_names = st.sampled_from([*NAMES, *NAMES, "abc", "__b", *IMPOSSIBLE, CLUSTER_NAME, *PRINCIPALS])
types = st.sampled_from([ResourceType.TOPIC] * 6 + list(ResourceType))
operations = st.sampled_from(list(Operation))
questions = st.lists(st.tuples(operations, types, asked_names), min_size=1, max_size=20)
allows = st.sampled_from([grant for grant in EVERY_GRANT if grant.effect is Effect.ALLOW])
topic_grants = st.sampled_from([grant for grant in EVERY_GRANT if grant.type is ResourceType.TOPIC])
grants = topic_grants | st.sampled_from(EVERY_GRANT)
hosts = st.none() | st.sampled_from(HOSTS)
_TARGETS: Final = [Target(type, one) for type in ResourceType for one in _patterns(type) if _reaches(one)]


def _bindings(grantee: Grantee) -> st.SearchStrategy[Binding]:
    def bind(role: Role, targets: list[Target]) -> Binding:
        fitting = [target for target in targets if target.type in role.operations]
        return Binding(grantee, role.name, frozenset(fitting))

    some = st.lists(st.sampled_from(_TARGETS), min_size=1, max_size=4)
    return st.builds(bind, st.sampled_from([OWN, *BUILT_IN_ROLES.values()]), some)


def _access(rules: list[frozenset[Grant]], bound: list[frozenset[Binding]], odd: Principal | None, how: int) -> Access:
    """``odd`` is blocked, or a super user, or both; seldom."""
    one = frozenset() if odd is None else frozenset({odd})
    return Access(
        generation=1,
        rules={who: some for who, some in zip(GRANTEES, rules, strict=True) if some},
        bindings={who: some for who, some in zip(GRANTEES, bound, strict=True) if some},
        roles={OWN.name: OWN},
        blocked=one if how & 1 else frozenset(),
        super_users=(one if how & 2 else frozenset()) | {ADMIN},
    )


accesses = st.builds(
    _access,
    st.tuples(*(st.frozensets(grants, max_size=5) for _ in GRANTEES)),
    st.tuples(*(st.frozensets(_bindings(who), max_size=1) for who in GRANTEES)),
    st.none() | st.none() | st.sampled_from([ALICE, STAFF]),
    st.integers(0, 3),
)
"""Worlds of few grantees, with rules and roles that meet in few names."""
scopes = st.builds(Scope, st.frozensets(allows, max_size=4))
callers = st.builds(
    Caller,
    st.sampled_from([ALICE, ALICE, BOB, CERT, ADMIN]),
    st.frozensets(st.just(STAFF), max_size=1),
    hosts,
    st.none() | st.none() | scopes,
)
