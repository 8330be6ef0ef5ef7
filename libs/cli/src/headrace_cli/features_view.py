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
    from headrace_proto.v1 import admin_pb2

    return answers.features(admin.ask("DescribeFeatures", admin_pb2.DescribeFeaturesRequest()))


def node_of(text: str) -> tuple[str, int] | None:
    """Role and id of such as ``coordinator-2``; None: it names no node that can be forgotten."""
    role, _, number = text.rpartition("-")
    return (role, int(number)) if role in ROLES and number.isascii() and number.isdigit() else None


def forget(admin: AdminClient, role: str, id: int) -> None:
    """Remove the registration of a node that is away. Raises: HeadraceError."""
    from headrace_proto.v1 import cluster_pb2
    from headrace_proto.v1 import controller_pb2 as pb

    request = pb.UnregisterNodeRequest(role=cluster_pb2.NodeRole.Value(role.upper()), id=id)
    admin.ask("UnregisterNode", request, change=True)
