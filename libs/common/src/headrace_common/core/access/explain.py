"""
Why a decision is as it is, read plainly from all grants, and who may do something. For people, not for each request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from shlex import quote
from typing import Final, NamedTuple

from headrace_common.core.access.changes import Block, Change, Put, Remove, Rule
from headrace_common.core.access.grants import Effect, Grant
from headrace_common.core.access.names import find_fault
from headrace_common.core.access.principal import Grantee, PrincipalType, parse_principal
from headrace_common.core.access.resources import (
    INTERNAL_PREFIX,
    OPERATIONS,
    RESOURCE_NAME_CHARS_MAX,
    Operation,
    Pattern,
    PatternKind,
    ResourceType,
    literal,
    operation_set,
    operations_in,
)
from headrace_common.core.access.state import Access, Caller, Source, grantees_of, is_beyond_vouching, own_grants
from headrace_common.core.errors import Rejected

_KINDS: Final = (PatternKind.LITERAL, PatternKind.PREFIX, PatternKind.ANY)


class Asked(NamedTuple):
    """A request."""

    operation: Operation
    type: ResourceType
    name: str
    host: str | None


class Reason(Enum):
    """What decided; in the order in which it is asked."""

    BLOCKED = "it is blocked"
    VOUCHED = "neither a password nor a certificate alone gives such a right; use an API key, or headrace login"
    OUT_OF_SCOPE = "its key is not for that"
    SUPER_USER = "it is a super user"
    NO_SUCH_NAME = "nothing can have this name"
    DENIED = "a rule denies it"
    ALLOWED = "a rule or role allows it"
    NOTHING_ALLOWS = "nothing allows it"


@dataclass(frozen=True, slots=True)
class Explanation:
    """A verdict, what it rests on, and what would turn a refusal."""

    allowed: bool
    reason: Reason
    sources: tuple[Source, ...]
    """The grants that match: denies first, then from the narrowest pattern to the widest. Also where none decided."""
    remedy: tuple[Change, ...] = ()
    """After these changes it is allowed; none: it is allowed, or no change of rules would allow it."""

    @property
    def line(self) -> str | None:
        """The remedy as one line for a shell; None: there is none."""
        return " && ".join(map(_command, self.remedy)) or None


def explain(access: Access, caller: Caller, operation: Operation, type: ResourceType, name: str) -> Explanation:
    """Why ``caller`` may, or may not. The verdict is that of ``Decisions.decide``."""
    grantees = caller.grantees
    asked = Asked(operation, type, name, caller.host)
    possible = find_fault(name, RESOURCE_NAME_CHARS_MAX) is None
    sources = _matching(access, grantees, asked)
    denies = [source for source in sources if source.grant.effect is Effect.DENY]
    scope = None if caller.scope is None else caller.scope.grants
    in_scope = scope is None or (possible and any(_matches(grant, asked) for grant in scope))
    vouched = caller.vouched and is_beyond_vouching(operation, type)
    if access.is_blocked(grantees):
        reason = Reason.BLOCKED
    elif vouched:
        reason = Reason.VOUCHED
    elif not in_scope:
        reason = Reason.OUT_OF_SCOPE
    elif access.is_super(grantees):
        reason = Reason.SUPER_USER
    elif not possible:
        reason = Reason.NO_SUCH_NAME
    elif denies:
        reason = Reason.DENIED
    else:
        reason = Reason.ALLOWED if sources else Reason.NOTHING_ALLOWS
    if reason in {Reason.ALLOWED, Reason.SUPER_USER}:
        return Explanation(True, reason, sources)
    remedy = _remedy(access, caller, denies, len(denies) < len(sources), asked) if in_scope and not vouched else ()
    return Explanation(False, reason, sources, remedy)


@dataclass(frozen=True, slots=True)
class Holder:
    """
    What rules and roles say of one principal, of everyone of a type, or of all who have a group; of each alone.

    SUPER_USER and ALLOWED are of who may. BLOCKED and DENIED are of a principal that else would, and of a group: who
    has it may not, whatever else is said.
    """

    grantee: Grantee
    reason: Reason
    anywhere: bool = True
    """Whether this is so from addresses that no rule names."""
    hosts: tuple[str, ...] = ()
    """Addresses from which it is the other way round."""
    sources: tuple[Source, ...] = ()
    """The grants that say something of it, in the order of ``Explanation.sources``, whatever address they are for."""

    @property
    def allowed(self) -> bool:
        """Whether it may, from some address at least."""
        return self.reason in {Reason.SUPER_USER, Reason.ALLOWED}


@dataclass(frozen=True, slots=True)
class Holders:
    """Who may do something, by their text. A principal that is not named is as everyone of its type."""

    holders: tuple[Holder, ...]
    more: bool = False
    """There are more than were asked for."""


def who_can(
    access: Access,
    operation: Operation,
    type: ResourceType,
    name: str,
    *,
    shows: Callable[[Grantee], bool] = lambda _: True,
    limit: int = 1_000,
) -> Holders:
    """
    Who may do this by rules and roles, whatever the mode, with a credential for everything that it has shown itself.

    Args:
        shows: of whom it is told.
    """
    said = _said(access, Asked(operation, type, name, None))
    candidates = {*said, *access.super_users, *access.blocked}
    candidates |= {one for one in access.bindings if access.is_super((one,))}
    found: list[Holder] = []
    for grantee in sorted(candidates, key=str):
        holder = _holder(access, grantee, said) if shows(grantee) else None
        if holder is None:
            continue
        if len(found) >= limit:
            return Holders(tuple(found), more=True)
        found.append(holder)
    return Holders(tuple(found))


def _holder(access: Access, grantee: Grantee, said: Mapping[Grantee, Sequence[Source]]) -> Holder | None:
    """None: it may not, and nothing keeps it from that."""
    grantees = grantees_of(grantee)
    sources = tuple(sorted((source for one in grantees for source in said.get(one, ())), key=_place))
    is_super = access.is_super(grantees)
    anywhere, hosts = _where(sources, _allow)
    may = is_super or anywhere or bool(hosts)
    is_group = grantee.type is PrincipalType.GROUP
    if access.is_blocked(grantees) and (may or is_group):
        return Holder(grantee, Reason.BLOCKED, sources=sources)
    if is_super:
        return Holder(grantee, Reason.SUPER_USER, sources=sources)
    if may:
        return Holder(grantee, Reason.ALLOWED, anywhere, hosts, sources)
    denied, hosts = _where(sources, _deny)
    if (denied or hosts) and (is_group or any(source.grant.effect is Effect.ALLOW for source in sources)):
        return Holder(grantee, Reason.DENIED, denied, hosts, sources)
    return None


def _where(sources: Iterable[Source], say: Callable[[Iterable[Grant]], bool]) -> tuple[bool, tuple[str, ...]]:
    """Whether grants say so from addresses that none of them names, and from which addresses they say otherwise."""
    grants = [source.grant for source in sources]

    def at(host: str | None) -> bool:
        return say([grant for grant in grants if grant.host in {None, host}])

    anywhere = at(None)
    hosts = sorted({grant.host for grant in grants if grant.host is not None})
    return anywhere, tuple(host for host in hosts if at(host) is not anywhere)


def _allow(grants: Iterable[Grant]) -> bool:
    effects = {grant.effect for grant in grants}
    return effects == {Effect.ALLOW}


def _deny(grants: Iterable[Grant]) -> bool:
    return any(grant.effect is Effect.DENY for grant in grants)


def _said(access: Access, asked: Asked) -> dict[Grantee, list[Source]]:
    """By whom they are for: all grants that say something of this, whatever address they are for."""
    said: dict[Grantee, list[Source]] = {}
    if find_fault(asked.name, RESOURCE_NAME_CHARS_MAX) is not None:
        return said
    own = _named(asked.name) if asked.type is ResourceType.PRINCIPAL else set()
    for grantee in {*access.rules, *access.bindings, *own}:
        grants = access.sources_of(grantee) if grantee in own else access.given_sources(grantee)
        sources = [source for source in grants if _says(source.grant, asked)]
        if sources:
            said[grantee] = sources
    return said


def _named(name: str) -> set[Grantee]:
    """Whom a resource of type PRINCIPAL is about: they have rights on themselves without any rule."""
    try:
        return {parse_principal(name)}
    except Rejected:
        return set()


def _matching(access: Access, grantees: Iterable[Grantee], asked: Asked) -> tuple[Source, ...]:
    """The grants that say something about this request, in order."""
    if find_fault(asked.name, RESOURCE_NAME_CHARS_MAX) is not None:
        return ()
    sources = (source for grantee in grantees for source in access.sources_of(grantee))
    return tuple(sorted((source for source in sources if _matches(source.grant, asked)), key=_place))


def describe_source(source: Source) -> str:
    """A grant and where it comes from, in words."""
    if source.binding is not None:
        return f"{source.grant}, by {source.binding} of {source.grantee}"
    own = source.grant in own_grants(source.grantee)
    return f"{source.grant}, {'as everybody has it' if own else f'by a rule of {source.grantee}'}"


def covers(grant: Grant, operation: Operation, type: ResourceType, name: str) -> bool:
    """Whether the grant says something about this, from whatever address."""
    return _says(grant, Asked(operation, type, name, None))


def _matches(grant: Grant, asked: Asked) -> bool:
    """Kafka's rules, with ours for internal names."""
    return grant.host in {None, asked.host} and _says(grant, asked)


def _says(grant: Grant, asked: Asked) -> bool:
    """As ``_matches``, from whatever address."""
    if grant.type is not asked.type:
        return False
    allow = grant.effect is Effect.ALLOW
    if allow and asked.name.startswith(INTERNAL_PREFIX) and grant.pattern.kind is not PatternKind.LITERAL:
        return False
    said_by = asked.operation.allowed_by if allow else asked.operation.denied_by
    return bool(grant.bits & said_by) and _names(grant.pattern, asked.name)


def _names(pattern: Pattern, name: str) -> bool:
    match pattern.kind:
        case PatternKind.LITERAL:
            return pattern.name == name
        case PatternKind.PREFIX:
            return name.startswith(pattern.name)
        case PatternKind.ANY:
            return True


def _place(source: Source) -> tuple[bool, int, int, str]:
    grant = source.grant
    kind = _KINDS.index(grant.pattern.kind)
    return grant.effect is Effect.ALLOW, kind, -len(grant.pattern.name), f"{grant} {source.grantee} {source.binding}"


def _remedy(
    access: Access, caller: Caller, denies: Iterable[Source], allowed: bool, asked: Asked
) -> tuple[Change, ...]:
    blocks = sorted(access.blocked.intersection(caller.grantees), key=str)
    unblock = [Remove(Block(one)) for one in blocks]
    if access.is_super(caller.grantees):
        return tuple(unblock)
    undo = [Remove(Rule(source.grantee, source.grant)) for source in denies]
    if allowed:
        return (*unblock, *undo)
    if caller.principal.type is PrincipalType.NODE or not asked.operation.bit & OPERATIONS[asked.type]:
        return ()
    try:
        grant = Grant(Effect.ALLOW, operation_set(asked.operation), asked.type, literal(asked.name))
    except Rejected:
        return ()
    return (*unblock, *undo, Put(Rule(caller.principal, grant)))


def _command(change: Change) -> str:
    match change:
        case Put(Rule(grantee, grant)):
            return f"headrace access {grant.effect.value} {quote(str(grantee))} {_words(grant)}"
        case Remove(Rule(grantee, grant)):
            return f"headrace access remove {grant.effect.value} {quote(str(grantee))} {_words(grant)}"
        case Remove(Block(principal)):
            return f"headrace access unblock {quote(str(principal))}"
    raise AssertionError(f"no remedy has {change}")


def _words(grant: Grant) -> str:
    operations = ",".join(one.value.lower() for one in operations_in(grant.operations))
    name = (
        f"--prefix {quote(grant.pattern.name)}"
        if grant.pattern.kind is PatternKind.PREFIX
        else quote(str(grant.pattern))
    )
    host = "" if grant.host is None else f" --host {grant.host}"
    return f"{operations} {grant.type.value.lower()} {name}{host}"
