"""
What the shell completes live: topics, groups and brokers of the cluster that the line means, and profiles.

A shell waits for the answer, so it has a second, and says nothing when it cannot tell.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

if TYPE_CHECKING:
    from headrace.finding import ClusterAddress
    from headrace_proto.v1.broker_pb2 import MetadataResponse

ANSWER_SECONDS: Final = 1.0
CONNECT_SECONDS: Final = 0.3
NAMES_MAX: Final = 1_000


def topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of topics; internal ones once their underscores are typed."""

    def names(cluster: ClusterAddress) -> Iterable[str]:
        found = _metadata(cluster).topics
        return (topic.name for topic in found if not topic.internal or incomplete.startswith("__"))

    return _complete(ctx, incomplete, names)


def groups(ctx: typer.Context, incomplete: str) -> list[str]:

    def names(cluster: ClusterAddress) -> Iterable[str]:
        from headrace import AdminClient

        with AdminClient(cluster, default_api_timeout_ms=int(ANSWER_SECONDS * 1_000)) as admin:
            return [group.group_id for group in admin.list_groups().groups]

    return _complete(ctx, incomplete, names)


def brokers(ctx: typer.Context, incomplete: str) -> list[str]:

    def names(cluster: ClusterAddress) -> Iterable[str]:
        from headrace_proto.v1 import cluster_pb2

        return (str(node.id) for node in _metadata(cluster).nodes if node.role == cluster_pb2.BROKER)

    return _complete(ctx, incomplete, names)


def profiles(ctx: typer.Context, incomplete: str) -> list[str]:
    from headrace import finding

    try:
        return sorted(name for name in finding.profiles(finding.config_file(os.environ)) if name.startswith(incomplete))
    except Exception:  # noqa: BLE001 - see _complete
        return []


def _complete(ctx: typer.Context, incomplete: str, names: Callable[[ClusterAddress], Iterable[str]]) -> list[str]:
    from headrace.finding import find_cluster

    try:
        given = _collect_options(ctx)
        cluster = find_cluster(given.get("bootstrap"), given.get("profile"), os.environ, Path.cwd)
        _check_there(cluster)
        said = {name for name in names(cluster) if name.startswith(incomplete) and _can_be_typed(name)}
    except Exception:  # noqa: BLE001 - whatever it is, a traceback in the line that is typed helps nobody
        return []
    return sorted(said)[:NAMES_MAX]


def _collect_options(ctx: typer.Context) -> dict[str, Any]:
    """The options that are on the line so far, of the command or before it."""
    given: dict[str, Any] = {}
    at: Any = ctx
    while at is not None:
        given = {**{name: value for name, value in at.params.items() if value is not None}, **given}
        at = at.parent
    return given


def _check_there(cluster: ClusterAddress) -> None:
    """Raises: OSError: no address takes connections."""
    for at, address in enumerate(cluster, 1):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
        except OSError:
            if at == len(cluster) or at == 3:
                raise
        else:
            return


def _metadata(cluster: ClusterAddress) -> MetadataResponse:
    from headrace.securing import security_of
    from headrace_common.rpc.channels import open_sync_channel
    from headrace_proto.v1 import broker_pb2, broker_pb2_grpc

    with open_sync_channel(cluster[0], security_of(cluster)) as channel:
        request = broker_pb2.MetadataRequest(all_topics=True)
        answer = broker_pb2_grpc.BrokerStub(channel).Metadata(request, timeout=ANSWER_SECONDS)
    cluster.check(answer.cluster_id, cluster[0])
    return answer


def _can_be_typed(name: str) -> bool:
    return name.isprintable() and not any(c.isspace() or c in "'\"\\$`!;&|<>()*?" for c in name)
