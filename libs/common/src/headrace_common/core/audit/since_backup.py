"""
What a restore of the metadata has brought back: who was blocked since the backup and may do things again, which keys
count again, whose rights are there again. Read from the audit's events, as far as they are kept; pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from headrace_common.core.audit.kinds import Kind
from headrace_common.core.errors import ErrorCode

SKEW_MS: Final = 5_000
"""How much the clock of who made the backup may be behind those of the controllers."""
_MODES: Final = ("open", "permissive", "closed")
_RIGHTS: Final = frozenset({"rules", "bindings"})
_USERS: Final[Mapping[str, str]] = {"CreateUser": "made", "ChangePassword": "changed", "DeleteUser": "removed"}


class Found(Enum):
    """What is another now than before the metadata was lost; the value is how it is said. Worst first."""

    BLOCK_GONE = "was blocked, and is not any more"
    KEY_BACK = "the key was deleted, and counts again"
    USER_BACK = "was removed, and can log in again"
    PASSWORD_BACK = "the password was changed, and the one before counts again"
    RIGHTS_BACK = "rights were taken away, and are there again"
    ROLE_BACK = "the role was changed, and is as before"
    MODE_BACK = "the cluster was more closed"
    UNFINISHED = "a change was begun, and its end is not known"
    RIGHTS_GONE = "rights were given, and are gone"
    BLOCK_BACK = "was unblocked, and is blocked again"
    KEY_GONE = "the key was made after the backup, and is gone"
    USER_GONE = "the user was made after the backup, and is gone"
    QUOTAS_BACK = "quotas were changed, and are as before"

    @property
    def lets_in(self) -> bool:
        """Whether somebody may do more than before."""
        return self in _LET_IN


_LET_IN: Final = frozenset(
    {
        Found.BLOCK_GONE,
        Found.KEY_BACK,
        Found.USER_BACK,
        Found.PASSWORD_BACK,
        Found.RIGHTS_BACK,
        Found.ROLE_BACK,
        Found.MODE_BACK,
        Found.UNFINISHED,
    }
)
_ORDER: Final = {found: at for at, found in enumerate(Found)}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it was."""

    found: Found
    name: str
    """Of the principal, key, user, role, or entity of quotas."""
    time_ms: int
    """When it was changed last, Unix time."""
    by: str
    """Who has changed it."""
    command: str = ""
    """What makes it right; empty: that is for a person to say."""


@dataclass(frozen=True, slots=True)
class Known:
    """Access as it is now."""

    mode: str
    blocked: frozenset[str]
    keys: frozenset[str]
    """Their ids."""
    users: Mapping[str, tuple[int, int]]
    """By name: when it was made, and when its password was set, Unix time in ms."""


@dataclass(frozen=True, slots=True)
class SinceBackup:
    """What the audit knows of the time between a backup and its restore."""

    findings: tuple[Finding, ...]
    """Worst first; none twice."""
    changed: int
    """Principals, keys, users, roles and entities of which something was changed in that time."""
    known_until_ms: int | None
    """The newest event of a controller before the restore: what came after it the audit does not know. None: it knows
    nothing, since no controller wrote one."""

    @property
    def to_block(self) -> list[str]:
        """Who was blocked, and is not."""
        return [one.name for one in self.findings if one.found is Found.BLOCK_GONE]

    @property
    def lets_in(self) -> bool:
        """Whether somebody may do more than before."""
        return any(one.found.lets_in for one in self.findings)


@dataclass(slots=True)
class _Subject:
    """All that happened to one thing."""

    time_ms: int = 0
    by: str = ""
    word: str = ""
    """What was done last, of users."""
    first: dict[str, str | None] = field(default_factory=dict)
    """Each member before its first change."""
    last: dict[str, str | None] = field(default_factory=dict)
    """And after its last one; None: there is none."""
    cut: bool = False
    """There were members that were not written."""
    later: bool = False
    """It was changed after the restore: somebody has seen to it."""

    def take(self, event: Mapping[str, Any], members: frozenset[str] | None = None) -> None:
        self.time_ms, self.by = event["time"], event["actor"]["principal"]
        change = event["change"] or {}
        before, after = (change.get(which, {"values": {}, "more": 0}) for which in ("before", "after"))
        self.cut = self.cut or bool(before["more"] or after["more"])
        for name in (before["values"].keys() | after["values"].keys()) & (
            members if members is not None else before["values"].keys() | after["values"].keys()
        ):
            self.first.setdefault(name, before["values"].get(name))
            self.last[name] = after["values"].get(name)


def find_since_backup(
    events: Iterable[Mapping[str, Any]], known: Known, backup_ms: int, restore_ms: int
) -> SinceBackup:
    """
    What is not as it was before the metadata was lost.

    Args:
        events: as lines of the audit have them, in any order; others are passed over, and so are seals.
        known: access as it is now.
        backup_ms: when the backup was made, Unix time.
        restore_ms: when it was restored.
    """
    subjects: dict[tuple[str, str], _Subject] = {}
    begun: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    until_ms = None
    for event in _in_order(events):
        if event["time"] <= restore_ms and event["node"].startswith("controller"):
            until_ms = event["time"]
        if event["kind"] != Kind.ACCESS_CHANGED.value or event["resource"] is None:
            continue
        call = (event["node"], event["start"], event["actor"]["principal"], event["rpc"], event["resource"]["name"])
        if event["status"] is None:
            begun.setdefault(call, []).append(event)
            continue
        if begun.get(call):
            begun[call].pop()
        if event["status"] != ErrorCode.NONE.name or event["time"] < backup_ms - SKEW_MS:
            continue
        kind, name = _subject(event)
        subject = subjects.setdefault((kind, name), _Subject())
        if event["time"] > restore_ms:
            subject.later = True
        elif not subject.later:
            subject.word = _USERS.get(event["rpc"].partition("/")[2], "")
            subject.take(event, _RIGHTS if kind == "rights" else None)
    findings = [
        finding
        for (kind, name), subject in subjects.items()
        if not subject.later and subject.time_ms
        for finding in _LOOKS[kind](name, subject, known)
    ]
    for left in begun.values():
        for event in left:
            done = subjects.get(_subject(event))
            if backup_ms - SKEW_MS <= event["time"] <= restore_ms and not (done and done.later):
                by = event["actor"]["principal"]
                findings.append(Finding(Found.UNFINISHED, event["resource"]["name"], event["time"], by))
    findings.sort(key=lambda one: (_ORDER[one.found], one.name))
    changed = sum(
        bool(one.time_ms and (one.first or kind not in {"mode", "rights"})) and _LOOKS[kind] is not _nothing
        for (kind, _), one in subjects.items()
    )
    return SinceBackup(tuple(dict.fromkeys(findings)), changed, until_ms)


def _in_order(events: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """By time; the same event may be there twice, and seals are no events."""
    unique = {(one["node"], one["start"], one["seq"]): one for one in events if "signature" not in one}
    return sorted(unique.values(), key=lambda one: (one["time"], one["node"], one["seq"]))


def _subject(event: Mapping[str, Any]) -> tuple[str, str]:
    name: str = event["resource"]["name"]
    if event["rpc"].partition("/")[2] in _USERS and not name.startswith("users "):
        return "user", (name or event["actor"]["principal"]).removeprefix("User:")
    kind, space, rest = name.partition(" ")
    if space and kind in _LOOKS:
        return kind, rest
    asked = ((event["change"] or {}).get("after") or {"values": {}})["values"]
    if "block" in asked or not event["rpc"].endswith("/AlterAccess"):
        return "item", name  # what became of it, another event says
    return ("mode", "mode") if name == "mode" else ("rights", name)


def _of_blocks(name: str, subject: _Subject, known: Known) -> Iterable[Finding]:
    if subject.last.get("blocked") and name not in known.blocked:
        yield Finding(Found.BLOCK_GONE, name, subject.time_ms, subject.by, f"headrace access block {name}")
    elif not subject.last.get("blocked") and name in known.blocked:
        yield Finding(Found.BLOCK_BACK, name, subject.time_ms, subject.by, f"headrace access unblock {name}")


def _of_keys(id: str, subject: _Subject, known: Known) -> Iterable[Finding]:
    owner = subject.last.get("owner")
    if owner is None and id in known.keys:
        yield Finding(Found.KEY_BACK, id, subject.time_ms, subject.by, f"headrace key delete {id}")
    elif owner is not None and id not in known.keys:
        yield Finding(Found.KEY_GONE, id, subject.time_ms, subject.by, f"headrace key create --owner {owner}")


def _of_users(name: str, subject: _Subject, known: Known) -> Iterable[Finding]:
    made_ms, set_ms = known.users.get(name, (None, 0))
    if subject.word == "removed":
        if made_ms is not None and made_ms <= subject.time_ms:
            command = f"headrace user remove {name} --cascade"
            yield Finding(Found.USER_BACK, name, subject.time_ms, subject.by, command)
    elif made_ms is None:
        yield Finding(Found.USER_GONE, name, subject.time_ms, subject.by, f"headrace user create {name}")
    elif subject.word == "changed" and set_ms < subject.time_ms - SKEW_MS:
        yield Finding(Found.PASSWORD_BACK, name, subject.time_ms, subject.by, f"headrace user passwd {name}")


def _of_rights(name: str, subject: _Subject, known: Known) -> Iterable[Finding]:
    before, after = (_leaves(side) for side in (subject.first, subject.last))
    command = f"headrace access show {name}"
    if subject.cut or before is None or after is None or before - after:
        yield Finding(Found.RIGHTS_BACK, name, subject.time_ms, subject.by, command)
    elif after - before:
        yield Finding(Found.RIGHTS_GONE, name, subject.time_ms, subject.by, command)


def _of_roles(name: str, subject: _Subject, known: Known) -> Iterable[Finding]:
    if subject.cut or subject.first != subject.last:
        yield Finding(Found.ROLE_BACK, name, subject.time_ms, subject.by, "headrace access show")


def _of_quotas(name: str, subject: _Subject, known: Known) -> Iterable[Finding]:
    if subject.cut or subject.first != subject.last:
        yield Finding(Found.QUOTAS_BACK, name, subject.time_ms, subject.by, "headrace quota list")


def _of_mode(name: str, subject: _Subject, known: Known) -> Iterable[Finding]:
    mode = subject.last.get("mode")
    if mode is not None and _MODES.index(mode) > _MODES.index(known.mode):
        yield Finding(Found.MODE_BACK, mode, subject.time_ms, subject.by, f"headrace access mode {mode}")


def _nothing(name: str, subject: _Subject, known: Known) -> Iterable[Finding]:
    """Said by other events."""
    return ()


_LOOKS: Final[Mapping[str, Callable[[str, _Subject, Known], Iterable[Finding]]]] = {
    "blocked": _of_blocks,
    "key": _of_keys,
    "user": _of_users,
    "users": _nothing,
    "item": _nothing,
    "rights": _of_rights,
    "role": _of_roles,
    "quotas": _of_quotas,
    "mode": _of_mode,
}


def _leaves(members: Mapping[str, str | None]) -> frozenset[str] | None:
    """Each rule and binding; None: they were too long to be written whole."""
    found = set()
    for name, text in members.items():
        try:
            found |= {f"{name} {json.dumps(one, sort_keys=True)}" for one in json.loads(text or "[]")}
        except ValueError:
            return None
    return frozenset(found)
