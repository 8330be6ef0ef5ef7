"""
What break-glass writes: for who is at a controller's host, who owns the cluster whatever its rules say.

``User:breakglass`` gets the role ``superuser`` and a key for one hour. It needs no controller and no credential, so it
opens a cluster from which everybody was locked out. Pure; called by the program ``breakglass``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from headrace_common.core.access.api_keys import ApiKey, digest_of, parse_key
from headrace_common.core.access.principal import BREAKGLASS, Principal
from headrace_common.core.access.roles import SUPERUSER, Binding
from headrace_common.core.access.rows import (
    BLOCKED,
    GONE,
    GRANTS,
    KEYS,
    STATE,
    Mode,
    Reader,
    changed_rows,
    read_state,
    write_key,
    write_state,
)
from headrace_common.core.access.state import Access
from headrace_common.core.errors import Conflict

LIFETIME_MS: Final = 3_600_000
_GRANTS: Final = f"{GRANTS}{BREAKGLASS}"
_BLOCKED: Final = f"{BLOCKED}{BREAKGLASS}"
_ENDED_MAX: Final = 100


def is_open(rows: Mapping[str, bytes]) -> bool:
    """Whether it was begun and not ended; its key may be over."""
    return _GRANTS in rows


def begin(rows: Mapping[str, bytes], key: str, now_ms: int, mark: str) -> dict[str, bytes]:
    """
    The rows that let who shows ``key`` do everything for an hour, from those that are there.

    Raises:
        Rejected: the row with the mode cannot be read by this version.
    """
    mode, _ = read_state(rows)
    id, secret = parse_key(key)
    kept = ApiKey(id, BREAKGLASS, digest_of(secret), now_ms, now_ms + LIFETIME_MS, note="break-glass")
    super_user = Access(bindings={BREAKGLASS: frozenset({Binding(BREAKGLASS, SUPERUSER)})})
    unblocked = {_BLOCKED: GONE} if _BLOCKED in rows else {}
    return _next(rows, mode, mark, {**changed_rows(Access(), super_user), **dict([write_key(kept)]), **unblocked})


def end(rows: Mapping[str, bytes], mark: str) -> dict[str, bytes]:
    """
    The rows that take it all back; none: there is nothing of it.

    Raises:
        Rejected: as ``begin``.
    """
    mode, _ = read_state(rows)
    names = [name for name, row in rows.items() if name.startswith(KEYS) and _owner(name, row) == BREAKGLASS]
    gone = dict.fromkeys([*names[:_ENDED_MAX], *([_GRANTS] if is_open(rows) else [])], GONE)
    return _next(rows, mode, mark, gone) if gone else {}


def lapse(rows: Mapping[str, bytes], keys: Iterable[ApiKey], now_ms: float, mark: str) -> dict[str, bytes]:
    """
    The rows that take the role back once its last key is over; none: it is not. Keys that are over stay for a day, so
    that who shows one is told.

    Args:
        keys: all that there are.

    Raises:
        Rejected: as ``begin``.
    """
    if not is_open(rows) or any(key.owner == BREAKGLASS and not key.expired(now_ms) for key in keys):
        return {}
    mode, _ = read_state(rows)
    return _next(rows, mode, mark, {_GRANTS: GONE})


def lower(rows: Mapping[str, bytes], mode: Mode, mark: str) -> dict[str, bytes]:
    """
    The row that makes the cluster less closed.

    Raises:
        Conflict: it is not more closed than that.
        Rejected: as ``begin``.
    """
    present, _ = read_state(rows)
    if present <= mode:
        raise Conflict(f"the cluster is {present.name.lower()}; there is nothing to lower")
    return _next(rows, mode, mark, {})


def _next(rows: Mapping[str, bytes], mode: Mode, mark: str, due: Mapping[str, bytes]) -> dict[str, bytes]:
    _, generation = read_state(rows)
    return {**due, STATE: write_state(mode, generation + 1, mark)}


def _owner(name: str, row: bytes) -> Principal | None:
    """By itself: other rows may be of a version that this one cannot read."""
    return next((key.owner for key in Reader().read({name: row}).keys.values()), None)
