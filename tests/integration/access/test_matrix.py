"""
Every operation of every service, on every port, asked with every kind of credential: who is not let in is told nothing.

What is expected comes from the tables that the services read, and those are held against the descriptors by tests of
their own, so an operation that is added is asked here too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
import pytest

from headrace import AdminClient, access
from headrace.local_keys import local_keys_directory, read_local_keys
from headrace_admin.rpc.access_table import ACCESS as ADMIN
from headrace_broker.rpc.access_table import ACCESS as BROKER
from headrace_cli.local import LocalCluster
from headrace_common.core.access.api_keys import format_key
from headrace_common.core.errors import Denied, HeadraceError, NetworkFailed, NotFound, Unauthenticated
from headrace_common.core.node_rules import WHO_MAY_CALL
from headrace_common.rpc.access_rules import NOBODY, NODES, AccessTable, Asks, AsksAny, AsksAnywhere, Rule
from headrace_common.rpc.channels import Security, open_sync_channel
from headrace_common.rpc.node_gate import NODE_KEY, TOKEN_KEY
from headrace_common.rpc.status import error_from_rpc
from headrace_common.runtime.token_file import read_tokens
from headrace_controller.rpc.access_table import ACCESS as CONTROLLER
from headrace_coordinator.rpc.access_table import ACCESS as COORDINATOR

pytestmark = pytest.mark.integration

TABLES: Final[dict[str, AccessTable]] = {
    "broker": BROKER,
    "coordinator": COORDINATOR,
    "admin": ADMIN,
    "controller": CONTROLLER,
}
OPERATIONS: Final = [(role, operation) for role, table in TABLES.items() for operation in table]
TRIES: Final = 5
"""gRPC loses what a server says where it is still being written to; then the call says that the connection broke."""

Shown = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Asked:
    """What was answered."""

    error: HeadraceError | None
    answer: bytes | None


def ask(at: str, operation: str, shown: Shown) -> Asked:
    """Send one empty message, whichever kind of call it is."""
    for _ in range(TRIES):
        with open_sync_channel(at, Security(lambda _: shown), own_connection=True) as channel:
            call: Any = channel.stream_stream(f"/headrace.v1.{operation}")
            try:
                return Asked(None, next(call(iter([b""]), timeout=20), None))
            except grpc.RpcError as error:
                found = error_from_rpc(error)
        if not isinstance(found, NetworkFailed):
            break
    return Asked(found, None)


@pytest.fixture(scope="module")
def cluster(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("matrix") / "data", brokers=1, closed=True) as made:
        yield made


@pytest.fixture(scope="module")
def without_rights(cluster: LocalCluster) -> str:
    """A key of somebody whom no rule names."""
    with AdminClient(cluster.address) as admin:
        return admin.create_key("User:nobody").key.reveal()


PUBLIC = {"Auth/DescribeSignOn"}
"""Tells strangers how to log in; an empty request names no issuer."""


@pytest.fixture(scope="module")
def revoked(cluster: LocalCluster) -> str:
    with AdminClient(cluster.address) as admin:
        made = admin.create_key("User:nobody")
        admin.delete_keys([made.description.id])
        return made.key.reveal()


@pytest.fixture(scope="module")
def blocked(cluster: LocalCluster) -> str:
    with AdminClient(cluster.address) as admin:
        made = admin.create_key("User:blocked")
        admin.alter_access([access.Put(access.block("User:blocked"))])
        return made.key.reveal()


@pytest.fixture(params=["nothing", "a wrong key", "revoked", "blocked", "another scheme"])
def unknown(request: pytest.FixtureRequest, revoked: str, blocked: str) -> Shown:
    shown = {
        "nothing": (),
        "a wrong key": bearer(format_key(bytes(10), bytes(32))),
        "revoked": bearer(revoked),
        "blocked": bearer(blocked),
        "another scheme": (("authorization", "Basic YWRtaW46YWRtaW4="),),
    }
    return shown[request.param]


def bearer(key: str) -> Shown:
    return (("authorization", f"Bearer {key}"),)


def test_who_is_not_known_is_told_so_by_every_operation(cluster: LocalCluster, unknown: Shown) -> None:
    for role, operation in OPERATIONS:
        asked = ask(cluster.process(role).grpc, operation, unknown)
        wanted = NotFound if operation in PUBLIC else Unauthenticated
        assert isinstance(asked.error, wanted), (operation, asked)


def test_who_has_no_rights_gets_nothing_that_a_table_guards(cluster: LocalCluster, without_rights: str) -> None:
    guarded = [one for one in OPERATIONS if for_nodes(*one) or asks_whatever_is_sent(TABLES[one[0]][one[1]])]
    assert len(guarded) > 40
    for role, operation in guarded:
        asked = ask(cluster.process(role).grpc, operation, bearer(without_rights))
        assert isinstance(asked.error, Denied), (operation, asked)


def test_who_may_everything_is_refused_what_nodes_ask_alone(cluster: LocalCluster) -> None:
    admin = read_local_keys(local_keys_directory(os.environ))[cluster.bootstrap_servers[0]].reveal()
    for role, operation in OPERATIONS:
        if TABLES[role][operation] is NOBODY:
            continue  # whoever logs in shows no key
        asked = ask(cluster.process(role).grpc, operation, bearer(admin))
        assert not isinstance(asked.error, Unauthenticated), (operation, asked)
        assert isinstance(asked.error, Denied) is for_nodes(role, operation), (operation, asked)


def for_nodes(role: str, operation: str) -> bool:
    return WHO_MAY_CALL[operation] is not None or TABLES[role][operation] is NODES


def asks_whatever_is_sent(rule: Rule) -> bool:
    """Whether an empty request is asked about too."""
    match rule:
        case AsksAnywhere():
            return True
        case Asks(wants) | AsksAny(wants):
            try:
                return bool(list(wants(None)))
            except AttributeError:  # it looks at the request
                return False
    return False


def test_a_node_is_no_other_node(cluster: LocalCluster) -> None:
    """The token of nodes tells what is one; what a node of each role may ask is the table of nodes."""
    [token, *_] = read_tokens(cluster.directory.path / "node-token")
    for node in ("broker", "coordinator", "controller", "admin"):
        shown = (NODE_KEY, f"{node}-1"), (TOKEN_KEY, token.decode())
        for role, operation in OPERATIONS:
            may = WHO_MAY_CALL[operation]
            if may is not None and node not in {one.value for one in may}:
                assert isinstance(ask(cluster.process(role).grpc, operation, shown).error, Denied), (node, operation)
