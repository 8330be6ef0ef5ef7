"""Rules, bindings, roles, keys and what they change, as the messages of ``access.proto`` and back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar

from headrace_common.core.access.api_keys import ApiKey
from headrace_common.core.access.changes import Block, Change, Item, Put, Remove, Rule
from headrace_common.core.access.gains import Reach, Shift
from headrace_common.core.access.grants import Effect, Grant, host_of
from headrace_common.core.access.principal import parse_grantee, parse_principal
from headrace_common.core.access.resources import (
    Operation,
    OperationSet,
    ResourceType,
    Target,
    operation_set,
    operations_in,
    parse_pattern,
)
from headrace_common.core.access.roles import Binding, Role
from headrace_common.core.errors import Rejected
from headrace_proto.v1 import access_pb2 as pb

_SHOWN_CHARS_MAX: Final = 80

E = TypeVar("E", Operation, ResourceType)


def operation_of(word: str) -> Operation:
    """Raises: Rejected: there is no such operation."""
    return _member(Operation, word, "operation")


def type_of(word: str) -> ResourceType:
    """Raises: Rejected: there is no such type of resource."""
    return _member(ResourceType, word, "type of resource")


def grant_to_proto(grant: Grant) -> pb.Grant:
    return pb.Grant(
        deny=grant.effect is Effect.DENY,
        operations=_words(grant.operations),
        type=grant.type.value,
        pattern=str(grant.pattern),
        host=grant.host or "",
    )


def grant_from_proto(grant: pb.Grant) -> Grant:
    """Raises: Rejected: nothing can be granted so."""
    return Grant(
        Effect.DENY if grant.deny else Effect.ALLOW,
        _set(grant.operations),
        type_of(grant.type),
        parse_pattern(grant.pattern),
        host_of(grant.host) if grant.host else None,
    )


def rule_to_proto(rule: Rule) -> pb.AccessRule:
    return pb.AccessRule(principal=str(rule.grantee), grant=grant_to_proto(rule.grant))


def binding_to_proto(binding: Binding) -> pb.AccessBinding:
    targets = sorted((target.type.value, str(target.pattern)) for target in binding.targets)
    return pb.AccessBinding(
        principal=str(binding.grantee),
        role=binding.role,
        targets=[pb.AccessTarget(type=type, pattern=pattern) for type, pattern in targets],
    )


def role_to_proto(role: Role) -> pb.AccessRole:
    """What it gives on the targets of a binding; what built-in ones give besides is in none of these."""
    return pb.AccessRole(
        name=role.name,
        operations=[
            pb.RoleOperations(type=type.value, operations=_words(some)) for type, some in role.operations.items()
        ],
    )


def change_to_proto(change: Change) -> pb.AccessChange:
    message = pb.AccessChange(remove=isinstance(change, Remove), cascade=isinstance(change, Remove) and change.cascade)
    match change.item:
        case Rule() as rule:
            message.rule.CopyFrom(rule_to_proto(rule))
        case Binding() as binding:
            message.binding.CopyFrom(binding_to_proto(binding))
        case Role() as role:
            message.role.CopyFrom(role_to_proto(role))
        case Block(principal):
            message.block = str(principal)
    return message


def change_from_proto(message: pb.AccessChange) -> Change:
    """Raises: Rejected: it is none, or nothing can be so."""
    item = _item(message)
    return Remove(item, message.cascade) if message.remove else Put(item)


def _item(message: pb.AccessChange) -> Item:
    match message.WhichOneof("item"):
        case "rule":
            return Rule(parse_grantee(message.rule.principal), grant_from_proto(message.rule.grant))
        case "binding":
            targets = frozenset(
                Target(type_of(one.type), parse_pattern(one.pattern)) for one in message.binding.targets
            )
            return Binding(parse_grantee(message.binding.principal), message.binding.role, targets)
        case "role":
            operations = {type_of(one.type): _set(one.operations) for one in message.role.operations}
            return Role(message.role.name, operations)
        case "block":
            return Block(parse_principal(message.block))
    raise Rejected("a change names a rule, a binding, a role or a block; this one names none that is known here")


def shift_to_proto(shift: Shift) -> pb.AccessShift:
    return pb.AccessShift(principal=str(shift.grantee), gains=map(_reach, shift.gains), loses=map(_reach, shift.loses))


def key_to_proto(key: ApiKey, *, configured: bool) -> pb.ApiKeyDescription:
    """Without its digest."""
    return pb.ApiKeyDescription(
        id=key.id,
        owner=str(key.owner),
        created_ms=key.created_ms,
        expires_ms=key.expires_ms,
        scope=[] if key.scope is None else sorted(map(grant_to_proto, key.scope.grants), key=str),
        note=key.note,
        configured=configured,
        login=bool(key.login),
    )


def _reach(reach: Reach) -> pb.AccessReach:
    return pb.AccessReach(
        type=reach.type.value,
        pattern=str(reach.pattern),
        operations=_words(reach.operations),
        host=reach.host or "",
    )


def _words(operations: OperationSet) -> list[str]:
    return [operation.value for operation in operations_in(operations)]


def _set(words: Iterable[str]) -> OperationSet:
    return operation_set(*map(operation_of, words))


def _member(kind: type[E], word: str, what: str) -> E:
    try:
        return kind(word.upper())
    except ValueError:
        names = ", ".join(one.value for one in kind)
        raise Rejected(f"there is no {what} {word[:_SHOWN_CHARS_MAX]!r}; there are {names}") from None
