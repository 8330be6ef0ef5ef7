"""What ``headrace cluster features`` shows, and which node ``cluster forget`` means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from headrace import AdminClient

Row = dict[str, Any]

ROLES: Final = ("controller", "coordinator", "admin")
"""Whose registrations ``cluster forget`` takes; brokers may hold records and have ``broker unregister``."""


def features(admin: AdminClient) -> Row:
    """The cluster's level, what each level brings, what every node knows, and what the next level waits for."""
    from headrace_common.rpc import answers

    return answers.features(admin.describe_features().wire)


def node_of(text: str) -> tuple[str, int] | None:
    """Role and id of such as ``coordinator-2``; None: it names no node that can be forgotten."""
    role, _, number = text.rpartition("-")
    return (role, int(number)) if role in ROLES and number.isascii() and number.isdigit() else None
