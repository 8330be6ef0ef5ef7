"""
A closed cluster whose services have a listener for clients with certificates: they work there as anywhere, are told the
addresses of these listeners alone, and every operation is asked by who shows a certificate, or none, or a node's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from libs.common.tests.kit.authority import Authority
from tests.integration.access.test_matrix import OPERATIONS, PUBLIC, TABLES, TRIES, asks_whatever_is_sent, for_nodes

from headrace import AdminClient, Consumer, Producer, access
from headrace._transport.grpc import GrpcTransport
from headrace.errors import ClusterAuthorizationFailed, Denied, HeadraceError, TopicAuthorizationFailed, Unauthenticated
from headrace.finding import ClientCertificateFiles, ClusterAddress
from headrace.securing import security_of
from headrace_cli.local import LocalCluster
from headrace_cli.local.plan import node_files
from headrace_common.core.errors import NetworkFailed, NotFound, TlsFailed
from headrace_common.rpc.access_rules import NOBODY
from headrace_common.rpc.channels import Security, open_sync_channel
from headrace_common.rpc.credentials import Pem
from headrace_common.rpc.status import error_from_rpc
from headrace_common.runtime.certificates import Leaf, read_pair, write_pair, write_private
from headrace_proto.v1 import cluster_pb2, controller_pb2
from headrace_proto.v1.admin_pb2_grpc import AdminStub

pytestmark = pytest.mark.integration

URI = "spiffe://example.org/billing"
BILLING = f"Cert:{URI}"
OF_BILLING = Leaf("billing-1", uri=URI)
ROLES = {cluster_pb2.BROKER: "broker", cluster_pb2.COORDINATOR: "coordinator", cluster_pb2.ADMIN: "admin"}


@dataclass
class Site:
    """A cluster, where its services take certificates, and who signs those."""

    cluster: LocalCluster
    at: dict[str, str]
    clients: Authority
    directory: Path

    @property
    def ca(self) -> bytes:
        return node_files(self.cluster.directory.path).ca.read_bytes()

    def address(self, leaf: Leaf = OF_BILLING) -> ClusterAddress:
        """As a client names the cluster that has such a certificate."""
        files = ClientCertificateFiles(str(self.directory / "me.crt"), str(self.directory / "me.key"))
        write_pair(Path(files.cert), Path(files.key), self.clients.make(leaf))
        ca = str(node_files(self.cluster.directory.path).ca)
        return ClusterAddress((self.at["broker"],), ca=ca, certificate=files)

    def ask(self, role: str, operation: str, pem: Pem, *shown: tuple[str, str]) -> HeadraceError | None:
        """Send one empty message; what is said."""
        security = Security(lambda _: shown, pem)
        found: HeadraceError | None = None
        for _ in range(TRIES):
            with open_sync_channel(self.at[role], security, own_connection=True) as channel:
                call: Any = channel.stream_stream(f"/headrace.v1.{operation}")
                try:
                    next(call(iter([b""]), timeout=20), None)
                    return None
                except grpc.RpcError as error:
                    found = error_from_rpc(error)
            if not isinstance(found, NetworkFailed):
                break
        return found

    def shows(self, leaf: Leaf, by: Authority | None = None) -> Pem:
        pair = (by or self.clients).make(leaf)
        return Pem(self.ca, pair.certificate_pem, pair.key_pem)


@pytest.fixture(scope="module")
def site(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory, clients = tmp_path_factory.mktemp("certificates"), Authority("clients")
    write_private(directory / "clients.crt", clients.ca.certificate_pem)
    with pytest.MonkeyPatch.context() as patch:
        for role in ROLES.values():
            patch.setenv(f"HEADRACE_{role.upper()}_MTLS_LISTEN", "127.0.0.1:0")
            patch.setenv(f"HEADRACE_{role.upper()}_MTLS_CLIENT_CA", str(directory / "clients.crt"))
        with LocalCluster(directory / "data", brokers=1, tls=True, closed=True) as cluster:
            with AdminClient(cluster.address) as admin:
                admin.create_topic("orders", partitions=1, replication_factor=1)
                admin.alter_access(
                    [
                        access.Put(access.allow(BILLING, ["READ", "WRITE"], "TOPIC", "orders")),
                        access.Put(access.allow(BILLING, ["READ"], "GROUP", "billing")),
                        access.Put(access.allow(BILLING, ["DESCRIBE"], "CLUSTER")),
                    ]
                )
            with open_sync_channel(cluster.process("admin").grpc, security_of(cluster.address)) as channel:
                nodes = AdminStub(channel).DescribeCluster(controller_pb2.DescribeClusterRequest(), timeout=20).nodes
            at = {ROLES[node.role]: f"{node.mtls.host}:{node.mtls.port}" for node in nodes if node.role in ROLES}
            yield Site(cluster, at, clients, directory)


def test_who_shows_one_works_at_these_listeners_alone(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    used: set[str] = set()
    real = GrpcTransport._channel

    def noted(transport: GrpcTransport, address: str) -> Any:
        used.add(address)
        return real(transport, address)

    monkeypatch.setattr(GrpcTransport, "_channel", noted)
    address = site.address()
    with Producer(address) as producer:
        for n in range(10):
            producer.send("orders", b"%d" % n)
    with Consumer("orders", bootstrap_servers=address, group_id="billing", auto_offset_reset="earliest") as consumer:
        read: list[bytes | None] = []
        end = time.monotonic() + 30
        while len(read) < 10 and time.monotonic() < end:
            read += [record.value for record in consumer.poll(timeout_ms=1_000)]
        consumer.commit()
    assert sorted(int(value or b"-1") for value in read) == list(range(10))
    with AdminClient(address) as admin:
        who = admin.who_am_i()
        assert (who.principal, who.key_id, who.super_user) == (BILLING, None, False)
        assert len(who.certificate or "") == 64
        assert who.expires_ms is not None
        assert [topic.name for topic in admin.list_topics()] == ["orders"], "what it may see, and no other"
        with pytest.raises(TopicAuthorizationFailed, match=BILLING):
            admin.create_topic("another", partitions=1, replication_factor=1)
    assert used <= set(site.at.values())
    assert len(used) == 3


def test_what_is_vouched_for_changes_nobodys_rights_at_the_controllers(site: Site) -> None:
    boss = "Cert:boss"
    with AdminClient(site.cluster.address) as admin:
        admin.alter_access([access.Put(access.bind(boss, "superuser"))])
    with AdminClient(site.address(Leaf("boss"))) as admin:
        admin.create_topic("of-the-boss", partitions=1, replication_factor=1)
        with pytest.raises(ClusterAuthorizationFailed, match="certificate alone"):
            admin.alter_access([access.Put(access.bind("User:eve", "superuser"))])


def test_every_operation_is_refused_to_who_shows_none_or_a_nodes(site: Site) -> None:
    files = node_files(site.cluster.directory.path)
    own = read_pair(files.of("admin"), files.key(files.of("admin")))
    assert own is not None
    of_node = Pem(site.ca, own.certificate_pem, own.key_pem)
    for role, operation in [one for one in OPERATIONS if one[0] in site.at][::10]:
        for pem in (Pem(site.ca), of_node, site.shows(Leaf("billing"), Authority())):
            assert isinstance(site.ask(role, operation, pem), NetworkFailed | TlsFailed), operation


def test_every_operation_is_answered_to_a_certificate_as_to_a_key(site: Site) -> None:
    named = site.shows(Leaf("nobody"))
    nameless = site.shows(Leaf("admin", uri="spiffe://headrace/admin"))
    for role, operation in (one for one in OPERATIONS if one[0] in site.at):
        error = site.ask(role, operation, nameless, ("headrace-node", "admin-1"))
        if TABLES[role][operation] is not NOBODY:
            wanted = Unauthenticated if not for_nodes(role, operation) else (Unauthenticated, Denied)
            assert isinstance(error, wanted), (operation, error)
        if operation in PUBLIC:
            assert isinstance(error, NotFound)
        if for_nodes(role, operation) or asks_whatever_is_sent(TABLES[role][operation]):
            error = site.ask(role, operation, named, ("headrace-node", "admin-1"))
            assert isinstance(error, Denied), (operation, error)
