"""What changes of access and of keys are decided from: the rows as they are, and whose rights are asked."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from headrace_common.core.access.control import Rights
from headrace_common.core.access.resources import ResourceType
from headrace_common.core.access.rows import BLOCKED, GRANTS, STATE, Mode, View
from headrace_common.core.access.state import Caller
from headrace_common.core.errors import UnsupportedVersion
from headrace_common.core.features import ACCESS, say_too_low
from headrace_common.runtime.auditing import tell_change
from headrace_controller.core import records
from headrace_controller.core.store import Unchanged
from headrace_controller.engine.follower import Follower

_KIND_NAMES: Final[Mapping[str, str]] = {"roles": "role", "blocked": "blocked", "keys": "key", "quotas": "quotas"}
_MEMBERS: Final[Mapping[str, frozenset[str] | None]] = {
    "state": frozenset({"mode"}),
    "grants": None,
    "roles": None,
    "blocked": None,
    "quotas": None,
    "keys": frozenset({"owner", "created_ms", "expires_ms", "scope", "note"}),
}
"""What of a row is shown in the audit, by its kind; None: all of it. Of kinds that are not here only that they are."""


class AccessRows:
    """The rows of access, for whoever is about to change some."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower

    def view(self) -> View:
        """
        All of them.

        Raises:
            UnsupportedVersion: below the level of access, or there are rows that this version cannot read.
        """
        image = self._follower.mirror.image
        if not image.has(ACCESS):
            raise UnsupportedVersion(say_too_low("saying who may do what", ACCESS, image.feature_level))
        view = self._follower.access
        if view.faults:
            raise UnsupportedVersion(
                f"there are rules that this controller cannot read, so it changes none: {view.faults[0]}; start the "
                "newer version of the controllers again"
            )
        return view

    def unchanged(self, row: str) -> Unchanged:
        """Compares that a row is as it is here."""
        key = records.access_key(row)
        return Unchanged(key, self._follower.mirror.mod_revision(key))

    def compare(self, rows: Mapping[str, bytes]) -> list[RowChange]:
        """What is about to become of these rows."""
        before = self._follower.mirror.image.access
        return [RowChange(name, before.get(name), row or None) for name, row in sorted(rows.items())]


class RowChange(NamedTuple):
    """One row, before and after a change; None: there is none."""

    name: str
    before: bytes | None
    after: bytes | None


def tell_rows(changed: Iterable[RowChange]) -> None:
    """Say it to the audit: of rules, who has them; without what proves a key."""
    for name, before, after in changed:
        tell_change(ResourceType.PRINCIPAL, _subject(name), _shown(name, before), _shown(name, after))


def _subject(row: str) -> str:
    """As the items of a request name it, where they do."""
    kind, _, name = row.partition("/")
    if f"{kind}/" == GRANTS:
        return name
    return "mode" if row == STATE else f"{_KIND_NAMES.get(kind, kind)} {name}"


def _shown(name: str, row: bytes | None) -> dict[str, str]:
    """Only what is known to be no secret."""
    kind, _, _ = name.partition("/")
    if row is None or kind not in _MEMBERS:
        return {}
    if f"{kind}/" == BLOCKED:
        return {"blocked": "True"}
    members = _MEMBERS[kind]
    fields: dict[str, object] = json.loads(row)
    return {
        one: value if isinstance(value, str) else json.dumps(value, sort_keys=True)
        for one, value in fields.items()
        if one != "v" and (members is None or one in members)
    }


def asked_by(view: View, rights: Rights) -> Caller | None:
    """
    Whose rights are asked; None: nobody's, since the cluster is open. In mode permissive it is decided as in a closed
    cluster who may change rules and keys: they outlast the mode.
    """
    return None if view.mode is Mode.OPEN else rights.caller
