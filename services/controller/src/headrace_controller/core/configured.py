"""
What the controllers' settings say of access, and the rows that make it so.

Super users and keys of ``User:admin`` travel as the row ``configured``; the mode is raised to the one that is set, and
never lowered. Pure; called by ``main`` (settings and the file), the candidate (a new cluster) and ``engine.access``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from headrace_common.core.access.api_keys import ApiKey, KeyId
from headrace_common.core.access.principal import Principal, PrincipalType
from headrace_common.core.access.rows import (
    CONFIGURED,
    PRODUCER_KEY_BYTES,
    PRODUCERS,
    STATE,
    Configured,
    Mode,
    read_state,
    write_configured,
    write_producer_key,
    write_state,
)
from headrace_common.core.errors import InvalidConfig, Rejected

ADMIN: Final = Principal(PrincipalType.USER, "admin")
"""Whose keys are in the controllers' file; a super user for as long as there is one."""
KEYS_MAX: Final = 16
FULL: Final = "full"
VOUCHED: Final = ("limited", FULL)
"""What sessions of users with passwords may do at most."""
NOTHING: Final = Configured()


@dataclass(frozen=True, slots=True)
class AccessSettings:
    """What is set for access on a controller; the same on all of them."""

    mode: Mode = Mode.OPEN
    """The cluster's at least."""
    configured: Configured = NOTHING
    nodes_proven: bool = False
    """Whether nodes have to prove that they are nodes, which a closed cluster depends on."""

    def due_rows(self, rows: Mapping[str, bytes]) -> dict[str, bytes]:
        """
        The rows of access to write where they differ from the settings; none: they do not.

        Raises:
            Rejected: the row with the mode cannot be read by this version.
        """
        mode, generation = read_state(rows)
        due = {}
        written = write_configured(self.configured)
        if rows.get(CONFIGURED, write_configured(NOTHING)) != written:
            due[CONFIGURED] = written
        if due or self.mode > mode:
            due[STATE] = write_state(max(mode, self.mode), generation + 1)
        return due

    def first_rows(self) -> dict[str, bytes]:
        """What a new cluster begins with, so that it is never open for a moment; none where it may be open."""
        return {} if self.mode is Mode.OPEN else self.due_rows({})


def due_producer_key(rows: Mapping[str, bytes], mode: Mode, new: Callable[[int], bytes]) -> dict[str, bytes]:
    """The row with a new key of producer ids, where the cluster is open no longer and has none."""
    return {} if mode is Mode.OPEN or PRODUCERS in rows else write_producer_key(new(PRODUCER_KEY_BYTES))


def make_configured(
    super_users: frozenset[Principal], keys: tuple[ApiKey, ...], *, vouched_full: bool = False
) -> Configured:
    """The row of these settings."""
    return Configured(super_users | {ADMIN} if keys else super_users, keys, vouched_full)


def parse_admin_keys(text: str) -> tuple[ApiKey, ...]:
    """
    Keys of ``User:admin`` from lines of ``ID SHA256HEX``; empty lines count for nothing.

    Raises:
        InvalidConfig: a line is of another form; it says which one, and nothing of what is in it.
    """
    keys: dict[KeyId, ApiKey] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            id, digest = line.split()
            key = ApiKey(KeyId(id), ADMIN, bytes.fromhex(digest), created_ms=0, note="from the controllers' file")
        except (ValueError, Rejected):
            raise InvalidConfig(
                f"line {number} is not ID SHA256HEX: a key's id and the SHA-256 of its secret, never the key itself"
            ) from None
        if key.id in keys:
            raise InvalidConfig(f"line {number} has the id of a line before it")
        keys[key.id] = key
    if len(keys) > KEYS_MAX:
        raise InvalidConfig(f"there are {len(keys)} keys; {KEYS_MAX} is the most")
    return tuple(keys.values())
