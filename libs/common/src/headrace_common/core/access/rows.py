"""
The rows that keep who may do what: the same in the metadata store, on the wire and in every node's image.

A row is compact JSON with ``v``, the version of its form. A row that this version cannot read is never guessed at: what
was read last stays, and without that everybody but super users is refused. So a node may be older than a rule.

=====================  =======================================================================================
``state``              the mode and the generation, which every change of rules raises: what changes compare with
``configured``         super users, and keys that are files of the controllers; the active one writes it
``grants/PRINCIPAL``   rules and bindings of somebody
``roles/NAME``         a role of one's own
``blocked/PRINCIPAL``  somebody may do nothing
``keys/ID``            an API key, without its secret
``issuers/ALIAS``      an issuer of tokens that is configured, and its keys; the active controller writes it
``users/NAME``         a user with a password, without that
``salting``            a secret by which who is not known is answered as who is; made with the first user
``quotas/ENTITY``      what is set for somebody; how an entity is written is ``quotas.entities``
``producers``          the key by which brokers see whose a producer id is; made when the cluster is open no longer
=====================  =======================================================================================
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

from headrace_common.core.access.api_keys import ApiKey, KeyId
from headrace_common.core.access.changes import find_touched
from headrace_common.core.access.grants import Effect, Grant, scope_of
from headrace_common.core.access.issuers import IssuerKeys, issuer_fields, read_issuer
from headrace_common.core.access.principal import Grantee, Principal, parse_grantee, parse_principal
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
from headrace_common.core.access.state import Access
from headrace_common.core.access.users import SALTING_BYTES, User, read_user, user_fields
from headrace_common.core.errors import Rejected
from headrace_common.core.image import AccessStep
from headrace_common.core.quotas.entities import Entity, parse_entity
from headrace_common.core.quotas.kinds import quota_named
from headrace_common.core.quotas.state import Quotas, Values, check_values

VERSION: Final = 1
STATE: Final = "state"
CONFIGURED: Final = "configured"
GRANTS: Final = "grants/"
ROLES: Final = "roles/"
BLOCKED: Final = "blocked/"
KEYS: Final = "keys/"
ISSUERS: Final = "issuers/"
QUOTAS: Final = "quotas/"
PRODUCERS: Final = "producers"
PRODUCER_KEY_BYTES: Final = 32
USERS: Final = "users/"
SALTING: Final = "salting"
GONE: Final = b""


class Mode(IntEnum):
    """How closed a cluster is; it rises alone."""

    OPEN = 0
    """Everybody may do everything, and no rule is asked."""
    PERMISSIVE = 1
    """Everything is decided, and what would be refused is counted and done."""
    CLOSED = 2
    """What nobody has allowed is refused."""


@dataclass(frozen=True, slots=True)
class Configured:
    """What the controllers' settings and files say."""

    super_users: frozenset[Principal] = frozenset()
    keys: tuple[ApiKey, ...] = ()
    vouched_full: bool = False
    """Sessions of users with passwords carry all rights, also those that change who may what."""


@dataclass(frozen=True, slots=True)
class View:
    """All rows, read."""

    mode: Mode = Mode.OPEN
    access: Access = field(default_factory=Access)
    """With the generation of the rows, and the super users that are configured."""
    keys: Mapping[KeyId, ApiKey] = field(default_factory=lambda: MappingProxyType({}))
    """Those that are configured included."""
    issuers: Mapping[str, IssuerKeys] = field(default_factory=lambda: MappingProxyType({}))
    """Of tokens, by alias."""
    quotas: Quotas = field(default_factory=Quotas)
    """The same object as long as its rows are the same."""
    users: Mapping[str, User] = field(default_factory=lambda: MappingProxyType({}))
    """With passwords, by name."""
    salting: bytes = b""
    """See ``scram.ServerExchange``; empty: there never was a user."""
    vouched_full: bool = False
    """See ``Configured``."""
    faults: tuple[str, ...] = ()
    """Rows that could not be read, and why."""
    configured: frozenset[KeyId] = frozenset()
    """The keys that the controllers' files name, and that go with them."""
    producer_key: bytes = field(default=b"", repr=False)
    """By which producer ids are bound to their owners; empty: there is none yet."""


def write_state(mode: Mode, generation: int, mark: str = "") -> bytes:
    """``mark`` tells this change from another one that had the same generation in mind; nobody reads it else."""
    marked = {"mark": mark} if mark else {}
    return _dump({"mode": mode.name.lower(), "generation": generation, **marked})


def write_configured(configured: Configured) -> bytes:
    keys = sorted(configured.keys, key=lambda key: key.id)
    return _dump(
        {
            "super_users": sorted(map(str, configured.super_users)),
            "keys": [{"id": key.id, **_key_fields(key)} for key in keys],
            **({"vouched": "full"} if configured.vouched_full else {}),
        }
    )


def write_key(key: ApiKey) -> tuple[str, bytes]:
    """The row of a key, and where it is."""
    return f"{KEYS}{key.id}", _dump(_key_fields(key))


def write_producer_key(key: bytes) -> dict[str, bytes]:
    """The row of a new key of producer ids."""
    return {PRODUCERS: _dump({"key": key.hex()})}


def write_issuer(known: IssuerKeys) -> tuple[str, bytes]:
    """The row of an issuer and its keys, and where it is."""
    return f"{ISSUERS}{known.issuer.alias}", _dump(issuer_fields(known))


def write_user(user: User) -> tuple[str, bytes]:
    """The row of a user, and where it is."""
    return f"{USERS}{user.name}", _dump(user_fields(user))


def write_salting(secret: bytes) -> bytes:
    assert len(secret) == SALTING_BYTES, "all of the randomness"
    return _dump({"secret": secret.hex()})


def changed_quotas(before: Quotas, after: Quotas) -> dict[str, bytes]:
    """The rows of quotas that a change makes others; ``GONE``: there is none any more."""
    old, new = before.values, after.values
    return {
        f"{QUOTAS}{entity}": _write_quotas(new.get(entity))
        for entity in old.keys() | new.keys()
        if new.get(entity) != old.get(entity)
    }


def read_state(rows: Mapping[str, bytes]) -> tuple[Mode, int]:
    """
    The mode and the generation, whatever else can be read.

    Raises:
        Rejected: the row cannot be read by this version.
    """
    row = rows.get(STATE)
    if row is None:
        return Mode.OPEN, 0
    state: tuple[Mode, int] = _read_or_refuse(STATE, row)
    return state


def changed_rows(before: Access, after: Access) -> dict[str, bytes]:
    """The rows of rules, bindings, roles and blocks that a change makes others; ``GONE``: there is none any more."""
    rows = {}
    for grantee in find_touched(before, after):
        row = _write_grants(after, grantee)
        if row != _write_grants(before, grantee):
            rows[f"{GRANTS}{grantee}"] = row
    for name in before.roles.keys() | after.roles.keys():
        role = after.roles.get(name)
        if role != before.roles.get(name):
            rows[f"{ROLES}{name}"] = GONE if role is None else _write_role(role)
    for principal in before.blocked ^ after.blocked:
        rows[f"{BLOCKED}{principal}"] = _dump({}) if principal in after.blocked else GONE
    return rows


class Reader:
    """
    Reads rows again and again; a change costs what has changed, and a copy of what is of its kind. One event loop.
    """

    def __init__(self) -> None:
        self.view = View()
        """What was read last."""
        self._rows: Mapping[str, bytes] = {}
        self._read: dict[str, dict[str, Any]] = {}
        """By kind, by key."""
        self._made: dict[str, Any] = {}
        """What a view has of each kind; it is in views that were given, so it is never changed."""
        self._faults: dict[str, str] = {}

    def read(self, rows: Mapping[str, bytes], step: AccessStep | None = None) -> View:
        """
        All of them; the same object as before if they are. A mapping that was given is never changed.

        Args:
            step: what has led to them, if that is known: nothing else is looked at where it is from what was read last.
        """
        if rows is not self._rows:
            known = step is not None and step.before is self._rows
            keys: Iterable[str] = step.keys if step is not None and known else rows.keys() | self._rows.keys()
            changed = {key: rows.get(key, GONE) for key in keys if rows.get(key) != self._rows.get(key)}
            self._rows = rows
            self._take(changed)
            self.view = self._combined()
        return self.view

    def _take(self, changed: Mapping[str, bytes]) -> None:
        kinds = {_kind_of(key) for key in changed}
        for kind in kinds:
            self._read.setdefault(kind, {})
        for key, row in changed.items():
            of_kind = self._read[_kind_of(key)]
            of_kind.pop(key, None)
            self._faults.pop(key, None)
            if row != GONE:
                try:
                    of_kind[key] = _read_or_refuse(key, row)
                except Rejected as fault:
                    self._faults[key] = str(fault)
        for kind in kinds & _MADE.keys():
            self._made[kind] = _MADE[kind](self._read[kind].values())

    def _combined(self) -> View:
        faults = tuple(f"{key}: {fault}" for key, fault in sorted(self._faults.items()))
        if faults and self.view.access.generation:
            return replace(self.view, faults=faults)
        configured = self._read.get(CONFIGURED, {}).get(CONFIGURED, Configured())
        files = frozenset(key.id for key in configured.keys)
        if faults:
            keys = MappingProxyType({key.id: key for key in configured.keys})
            closed = Access(super_users=configured.super_users)
            return View(
                Mode.CLOSED, closed, keys, vouched_full=configured.vouched_full, faults=faults, configured=files
            )
        mode, generation = self._read.get(STATE, {}).get(STATE, (Mode.OPEN, 0))
        rules, bindings = self._made.get(GRANTS, ({}, {}))
        roles, blocked = self._made.get(ROLES, {}), self._made.get(BLOCKED, frozenset())
        access = Access(generation, rules, bindings, roles, blocked, configured.super_users)
        keys = MappingProxyType({**self._made.get(KEYS, {}), **{key.id: key for key in configured.keys}})
        issuers = MappingProxyType(self._made.get(ISSUERS, {}))
        return View(
            mode,
            access,
            keys,
            issuers,
            self._made.get(QUOTAS, _NO_QUOTAS),
            MappingProxyType(self._made.get(USERS, {})),
            self._read.get(SALTING, {}).get(SALTING, b""),
            configured.vouched_full,
            configured=files,
            producer_key=self._read.get(PRODUCERS, {}).get(PRODUCERS, b""),
        )


_NO_QUOTAS: Final = Quotas()


def _kind_of(key: str) -> str:
    kind, slash, _ = key.partition("/")
    return kind + slash


def _make_grants(read: Iterable[Any]) -> tuple[dict[Grantee, frozenset[Grant]], dict[Grantee, frozenset[Binding]]]:
    rules, bindings = {}, {}
    for grantee, granted, bound in read:
        if granted:
            rules[grantee] = granted
        if bound:
            bindings[grantee] = bound
    return rules, bindings


_MADE: Final[Mapping[str, Callable[[Iterable[Any]], Any]]] = MappingProxyType(
    {
        GRANTS: _make_grants,
        ROLES: lambda read: {role.name: role for role in read},
        BLOCKED: frozenset,
        KEYS: lambda read: {key.id: key for key in read},
        ISSUERS: lambda read: {known.issuer.alias: known for known in read},
        USERS: lambda read: {user.name: user for user in read},
        QUOTAS: lambda read: Quotas(MappingProxyType(dict(read))),
    }
)


def _read_or_refuse(key: str, row: bytes) -> Any:
    try:
        return _read_row(key, row)
    except (Rejected, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Rejected(f"it cannot be read by this version ({type(error).__name__}: {error})") from error


def _read_row(key: str, row: bytes) -> Any:
    fields = json.loads(row)
    if fields["v"] != VERSION:
        raise Rejected(f"its form is {fields['v']}, and {VERSION} is the newest known")
    kind, slash, rest = key.partition("/")
    match kind + slash:
        case "state":
            return Mode[fields["mode"].upper()], fields["generation"]
        case "configured":
            keys = tuple(_key(KeyId(one["id"]), one) for one in fields["keys"])
            supers = frozenset(map(parse_principal, fields["super_users"]))
            return Configured(supers, keys, fields.get("vouched") == "full")
        case "grants/":
            grantee = parse_grantee(rest)
            return (
                grantee,
                frozenset(map(_grant, fields["rules"])),
                frozenset(Binding(grantee, role, frozenset(map(_target, on))) for role, on in fields["bindings"]),
            )
        case "roles/":
            return Role(rest, {ResourceType[type]: _set(tuple(names)) for type, names in fields["operations"].items()})
        case "blocked/":
            return parse_principal(rest)
        case "keys/":
            return _key(KeyId(rest), fields)
        case "issuers/":
            return read_issuer(rest, fields)
        case "producers":
            return _producer_key(fields["key"])
        case "users/":
            return read_user(rest, fields)
        case "salting":
            return _salting(fields["secret"])
        case "quotas/":
            return _quotas(parse_entity(rest), fields["values"])
    raise Rejected("it is of a kind that is not known")


def _write_grants(access: Access, grantee: Grantee) -> bytes:
    rules = sorted(map(_grant_fields, access.rules.get(grantee, ())), key=repr)
    bindings = sorted(
        [binding.role, sorted([target.type.value, str(target.pattern)] for target in binding.targets)]
        for binding in access.bindings.get(grantee, ())
    )
    return _dump({"rules": rules, "bindings": bindings}) if rules or bindings else GONE


def _write_quotas(values: Values | None) -> bytes:
    return (
        GONE
        if values is None
        else _dump({"values": {quota.value: values[quota] for quota in sorted(values, key=lambda one: one.value)}})
    )


def _quotas(entity: Entity, values: dict[str, Any]) -> tuple[Entity, Values]:
    read = check_values(entity, {quota_named(name): value for name, value in values.items()})
    if not read or len(read) < len(values):
        raise Rejected("a value is missing")
    return entity, MappingProxyType(read)


def _producer_key(text: str) -> bytes:
    key = bytes.fromhex(text)
    if len(key) != PRODUCER_KEY_BYTES:
        raise Rejected(f"the key has {len(key)} bytes instead of {PRODUCER_KEY_BYTES}")
    return key


def _salting(secret: str) -> bytes:
    read = bytes.fromhex(secret)
    if len(read) != SALTING_BYTES:
        raise Rejected(f"its secret has {len(read)} bytes, not {SALTING_BYTES}")
    return read


def _write_role(role: Role) -> bytes:
    return _dump({"operations": {type.value: _names(some) for type, some in sorted(role.operations.items(), key=str)}})


def _key_fields(key: ApiKey) -> dict[str, Any]:
    return {
        "owner": str(key.owner),
        "digest": key.digest.hex(),
        "created_ms": key.created_ms,
        "expires_ms": key.expires_ms,
        "scope": None if key.scope is None else sorted(map(_grant_fields, key.scope.grants), key=repr),
        "note": key.note,
        **({"login": key.login} if key.login else {}),
    }


def _key(id: KeyId, fields: dict[str, Any]) -> ApiKey:
    scope = fields["scope"]
    return ApiKey(
        id,
        parse_principal(fields["owner"]),
        bytes.fromhex(fields["digest"]),
        fields["created_ms"],
        fields["expires_ms"],
        None if scope is None else scope_of(map(_grant, scope)),
        fields["note"],
        str(fields.get("login", "")),
    )


def _grant_fields(grant: Grant) -> list[Any]:
    return [grant.effect.value, _names(grant.operations), grant.type.value, str(grant.pattern), grant.host]


def _grant(fields: list[Any]) -> Grant:
    effect, operations, type, pattern, host = fields
    return Grant(_EFFECTS[effect], _set(tuple(operations)), ResourceType[type], parse_pattern(pattern), host)


def _target(fields: list[str]) -> Target:
    type, pattern = fields
    return Target(ResourceType[type], parse_pattern(pattern))


def _names(operations: OperationSet) -> list[str]:
    return [operation.value for operation in operations_in(operations)]


_EFFECTS: Final = {effect.value: effect for effect in Effect}


@lru_cache(maxsize=1_000)
def _set(names: tuple[str, ...]) -> OperationSet:
    """Remembered: of 100,000 rules most name the same few operations."""
    return operation_set(*(Operation[name] for name in names))


def _dump(fields: dict[str, Any]) -> bytes:
    return json.dumps({"v": VERSION, **fields}, separators=(",", ":"), ensure_ascii=False).encode()
