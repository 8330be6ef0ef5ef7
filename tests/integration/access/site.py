"""
A closed cluster with TLS, whose services have a listener of each kind, and who may ask there: for tests that knock at
every port.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import grpc
import pytest
from libs.common.tests.kit.authority import Authority
from libs.common.tests.kit.ports import free_port
from tests.integration.access.test_matrix import TRIES

from headrace import AdminClient, access
from headrace.finding import ClientCertificateFiles, ClusterAddress
from headrace_cli.local import LocalCluster
from headrace_cli.local.certificate_files import NodeFiles
from headrace_cli.local.plan import node_files
from headrace_common.core.errors import HeadraceError, NetworkFailed
from headrace_common.rpc.channels import Security, open_sync_channel
from headrace_common.rpc.credentials import Pem
from headrace_common.rpc.status import error_from_rpc
from headrace_common.runtime.certificates import Leaf, write_pair, write_private

URI: Final = "spiffe://example.org/billing"
BILLING: Final = f"Cert:{URI}"
OF_BILLING: Final = Leaf("billing-1", uri=URI)
SERVED: Final = ("broker", "coordinator", "admin")
"""Roles that clients come to."""

Shown = tuple[tuple[str, str], ...]


class Connection:
    """One connection to one port, as a context manager; one is lost now and then, and made anew."""

    def __init__(self, at: str, role: str, pem: Pem) -> None:
        self._at = at
        self._security = Security(pem=pem, server_name=lambda _: f"{role}.headrace")

    def __enter__(self) -> Self:
        self._channel = open_sync_channel(self._at, self._security, own_connection=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._channel.close()

    def ask(self, operation: str, shown: Shown = (), *, tries: int = TRIES) -> HeadraceError | None:
        """Send one empty message, whichever kind of call it is; what is said. None: it was answered."""
        found: HeadraceError | None = None
        for _ in range(tries):
            call: Any = self._channel.stream_stream(f"/headrace.v1.{operation}")
            answers = call(iter([b""]), timeout=20, metadata=shown)
            try:
                next(answers, None)
                return None
            except grpc.RpcError as error:
                found = error_from_rpc(error)
            finally:
                answers.cancel()
            if not isinstance(found, NetworkFailed):
                break
        return found


@dataclass
class Site:
    """A cluster, where its services listen, and who signs what clients show."""

    cluster: LocalCluster
    at: dict[str, dict[str, str]]
    """By listener, then by role."""
    clients: Authority
    directory: Path

    @property
    def files(self) -> NodeFiles:
        return node_files(self.cluster.directory.path)

    @property
    def ca(self) -> bytes:
        return self.files.ca.read_bytes()

    @property
    def nobody(self) -> Pem:
        """Who trusts the cluster, and has no certificate."""
        return Pem(self.ca)

    def address(self, leaf: Leaf = OF_BILLING) -> ClusterAddress:
        """As a client names the cluster that has such a certificate."""
        files = ClientCertificateFiles(str(self.directory / "me.crt"), str(self.directory / "me.key"))
        write_pair(Path(files.cert), Path(files.key), self.clients.make(leaf))
        return ClusterAddress((self.at["mtls"]["broker"],), ca=str(self.files.ca), certificate=files)

    def shows(self, leaf: Leaf, by: Authority | None = None) -> Pem:
        """A certificate of the clients' CA, or of another."""
        pair = (by or self.clients).make(leaf)
        return Pem(self.ca, pair.certificate_pem, pair.key_pem)

    def of_node(self, role: str) -> Pem:
        """What the nodes of a role show."""
        cert = self.files.of(role)
        return Pem(self.ca, cert.read_bytes(), self.files.key(cert).read_bytes())

    def connect(self, listener: str, role: str, pem: Pem | None = None) -> Connection:
        """``pem``: None: without a certificate."""
        return Connection(self.at[listener][role], role, pem or self.nobody)


@contextmanager
def opened_site(directory: Path) -> Iterator[Site]:
    """``User:ANONYMOUS`` may nothing; ``BILLING`` may write and read the topic ``orders``."""
    clients = Authority("clients")
    write_private(directory / "clients.crt", clients.ca.certificate_pem)
    at: dict[str, dict[str, str]] = {name: {} for name in ("client", "external", "mtls", "internal")}
    with pytest.MonkeyPatch.context() as patch:
        for role in SERVED:
            for listener in ("mtls", "external"):
                at[listener][role] = f"127.0.0.1:{free_port()}"
                patch.setenv(f"HEADRACE_{role.upper()}_{listener.upper()}_LISTEN", at[listener][role])
            patch.setenv(f"HEADRACE_{role.upper()}_EXTERNAL_ADVERTISE", at["external"][role])
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
            at["client"] = {role: cluster.process(role).grpc for role in SERVED}
            ports = cluster.state.ports
            at["internal"] = {role: f"127.0.0.1:{ports[f'{role}-1.internal']}" for role in ("broker", "coordinator")}
            at["internal"]["controller"] = cluster.process("controller").grpc
            yield Site(cluster, at, clients, directory)
