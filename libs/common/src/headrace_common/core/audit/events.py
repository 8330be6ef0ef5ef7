"""
An event: who did what to what, from where, and how it ended; and its form as plain data.

Texts come from callers, so each is cut to a length, and credentials are cut out of it: who calls a topic like a key
gets its event written all the same. Values of settings that hold secrets are never in it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from headrace_common.core.access.authentication import Shown
from headrace_common.core.access.grants import Effect
from headrace_common.core.access.resources import RESOURCE_NAME_CHARS_MAX, Operation, ResourceType
from headrace_common.core.audit.kinds import TREATMENTS, Kind
from headrace_common.core.credential_forms import cut_credentials, sounds_secret
from headrace_common.core.errors import ErrorCode
from headrace_common.core.secret import SHOWN, Secret

GROUPS_MAX: Final = 20
"""Named in an event; the rest is counted."""
CHANGE_CHARS_MAX: Final = 8_192
"""Of all names and values of ``before``, and again of ``after``; members beyond are counted. Whoever changes more
writes an event for each resource."""
NAME_CHARS_MAX: Final = RESOURCE_NAME_CHARS_MAX
TEXT_CHARS_MAX: Final = 1_024
_READ_TIMES_MAX: Final = 4
"""So many times its bound is looked at in a text: a caller may send megabytes."""


class Method(Enum):
    """How a caller has proven who it is."""

    NOTHING = "nothing"
    API_KEY = "api_key"
    TOKEN = "token"
    PASSWORD = "password"
    CERTIFICATE = "certificate"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class Actor:
    """Who did it, or says so where it has proven nothing."""

    principal: str
    method: Method
    credential: str = ""
    """The id of the key, or SHA-256 of the certificate, hexadecimal; empty: it has none."""
    groups: tuple[str, ...] = ()
    """At most ``GROUPS_MAX`` are left of more."""
    groups_more: int = field(init=False)
    """The number of the others."""

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "principal", _cut(self.principal, NAME_CHARS_MAX))
        put(self, "credential", _cut(self.credential, NAME_CHARS_MAX))
        put(self, "groups_more", max(0, len(self.groups) - GROUPS_MAX))
        put(self, "groups", tuple(_cut(group, NAME_CHARS_MAX) for group in sorted(self.groups)[:GROUPS_MAX]))


@dataclass(frozen=True, slots=True)
class Resource:
    """What it was done to."""

    type: ResourceType
    name: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", _cut(self.name, NAME_CHARS_MAX))


@dataclass(frozen=True, slots=True)
class Decision:
    """What rules said."""

    effect: Effect
    rule: str = ""
    """Which one; empty: none."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "rule", _cut(self.rule, TEXT_CHARS_MAX))


@dataclass(frozen=True, slots=True)
class Change:
    """What is another now than before, by name; ``change_of`` makes it. A name that is in one alone was not there."""

    before: Mapping[str, str]
    after: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Event:
    """What has happened."""

    kind: Kind
    time_ms: int
    """Unix time."""
    actor: Actor
    source: str = ""
    """The address of the caller; empty: not known."""
    rpc: str = ""
    """``SERVICE/OPERATION``; empty: no call did it."""
    operation: Operation | None = None
    resource: Resource | None = None
    decision: Decision | None = None
    status: ErrorCode | None = ErrorCode.NONE
    """How it ended. None: it is about to be done; the next event of the same call says how it ended."""
    change: Change | None = None
    count: int = 1
    """How often it has happened since it was last written; ``time_ms`` is then that of the last time."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "source", _cut(self.source, NAME_CHARS_MAX))
        object.__setattr__(self, "rpc", _cut(self.rpc, NAME_CHARS_MAX))


def actor_of(shown: Shown) -> Actor:
    """Who has shown this."""
    method, credential = Method.NOTHING, ""
    if shown.node is not None:
        method = Method.NODE
    elif shown.token is not None:
        method = Method.TOKEN
    elif shown.session is not None:
        method = Method.PASSWORD
    elif shown.key is not None:
        method, credential = Method.PASSWORD if shown.key.login else Method.API_KEY, shown.key.id
    elif shown.certificate is not None:
        method, credential = Method.CERTIFICATE, shown.certificate.fingerprint
    caller = shown.caller
    return Actor(str(caller.principal), method, credential, tuple(map(str, caller.groups)))


def change_of(
    before: Mapping[str, str | Secret],
    after: Mapping[str, str | Secret],
    secret: Callable[[str], bool] = sounds_secret,
) -> Change:
    """
    What differs between two states of something.

    Args:
        secret: whether the value of this name is shown to nobody; a ``Secret`` never is.
    """
    names = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]

    def shown(values: Mapping[str, str | Secret]) -> dict[str, str]:
        named = ((name, values[name]) for name in names if name in values)
        return {name: SHOWN if isinstance(value, Secret) or secret(name) else value for name, value in named}

    return Change(shown(before), shown(after))


def fields_of(event: Event) -> dict[str, Any]:
    """The event as plain data; every event has every name."""
    resource, decision, actor = event.resource, event.decision, event.actor
    return {
        "class_uid": TREATMENTS[event.kind].event_class.value,
        "kind": event.kind.value,
        "time": event.time_ms,
        "actor": {
            "principal": actor.principal,
            "groups": list(actor.groups),
            "groups_more": actor.groups_more,
            "credential": actor.credential,
            "method": actor.method.value,
        },
        "source": event.source,
        "rpc": event.rpc,
        "operation": None if event.operation is None else event.operation.value,
        "resource": None if resource is None else {"type": resource.type.value, "name": resource.name},
        "decision": None if decision is None else {"effect": decision.effect.value, "rule": decision.rule},
        "status": None if event.status is None else event.status.name,
        "change": None if event.change is None else _change_fields(event.change),
        "count": event.count,
    }


def _change_fields(change: Change) -> dict[str, Any]:
    return {"before": _members(change.before), "after": _members(change.after)}


def _members(values: Mapping[str, str]) -> dict[str, Any]:
    shown: dict[str, str] = {}
    room = CHANGE_CHARS_MAX
    for whole_name, whole in sorted(values.items()):
        name, value = _cut(whole_name, NAME_CHARS_MAX), _cut(whole, TEXT_CHARS_MAX)
        room -= len(name) + len(value)
        if room < 0:
            break
        shown[name] = value
    return {"values": shown, "more": len(values) - len(shown)}


def _cut(text: str, chars_max: int) -> str:
    """What is longer ends with its length and the SHA-256 of its beginning, which tells it from most others."""
    head = text[: _READ_TIMES_MAX * chars_max]
    clean = cut_credentials(head)
    if len(head) == len(text) and len(clean) <= chars_max:
        return clean
    digest = hashlib.sha256(clean.encode("utf-8", "surrogatepass")).hexdigest()
    tail = f"... {len(text)} characters, SHA-256 {digest}"
    return cut_credentials(clean[: chars_max - len(tail)] + tail)  # again: a mark that was cut in two is no mark
