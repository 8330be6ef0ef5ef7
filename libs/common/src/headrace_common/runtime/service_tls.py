"""
The certificates of a service, for all of its listeners and channels: opened once by its ``main``.

A node's certificate names its role twice, as a host that other nodes ask for (``broker.headrace``) and as who it is
(``spiffe://TRUST-DOMAIN/broker``), so that servers and clients of the cluster find each other out by the one CA.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, final

from opentelemetry.metrics import Meter

from headrace_common.core.image import Listener, NodeKey
from headrace_common.core.node_rules import host_of, uri_of
from headrace_common.core.served_certificates import Served
from headrace_common.rpc.channels import GRACE_MS, Certificates
from headrace_common.rpc.credentials import Pem
from headrace_common.runtime.clock import Clock
from headrace_common.runtime.tasks import TaskRunner
from headrace_common.runtime.tls_config import TlsConfig

if TYPE_CHECKING:  # only who has certificates has what reads them
    from headrace_common.runtime.tls import Bundle, Wanted
    from headrace_common.runtime.tls_server import ServerTls
    from headrace_common.runtime.tls_watch import LiveBundle


@final
@dataclass(frozen=True, slots=True)
class ServiceTls:
    """Made by ``open_tls``."""

    live: LiveBundle
    """For servers."""
    certificates: Certificates
    """For channels; the newest that are sound, too."""
    cas: Certificates
    """For channels to who is no node, and is shown nothing of this one: the CAs alone, the newest too."""
    trust_domain: str
    host: str
    """What the certificate of a node names wherever it runs; empty: of a process that is no node."""
    ca: Path
    """The file of the CAs, for clients that read it themselves."""
    of_clients: LiveBundle | None = None
    """For the server of clients with certificates of their own, which trusts their CA and no other."""
    also_plain: bool = False
    """Its listeners answer plain text too, while the cluster is moved to TLS."""
    dials: bool = True
    """Others are called by it."""

    def names(self, host: str) -> bool:
        """Whether the certificate that is shown now names ``host``."""
        return host in self.live.bundle.names

    @property
    def dialing(self) -> Certificates | None:
        """With what other nodes are called; None: in plain text, for some of them may have no TLS yet."""
        return self.certificates if self.dials else None

    def serving(self, listener: Listener) -> ServerTls:
        """For a gRPC listener: nodes show certificates, and who comes by mtls; others are asked for none."""
        from headrace_common.runtime.tls_server import ServerTls

        if listener is Listener.MTLS:
            assert self.of_clients is not None, "checked with the settings"
            return ServerTls(self.of_clients, client_certificates=True)
        return ServerTls(self.live, client_certificates=listener is Listener.INTERNAL, also_plain=self.also_plain)

    async def served(self, *, look: bool) -> list[Served]:
        """What is in use; ``look``: the files are looked at first."""
        watched = [self.live, *([self.of_clients] if self.of_clients else [])]
        if look:
            for one in watched:
                await one.look()
        return [one.served() for one in watched]


@asynccontextmanager
async def open_tls(
    config: TlsConfig,
    node: NodeKey | None,
    clock: Clock,
    meter: Meter,
    tasks: TaskRunner,
    client_ca: Path | None = None,
) -> AsyncIterator[ServiceTls | None]:
    """
    The certificates of ``config``, watched by ``tasks`` until the block ends; None: it names none.

    Args:
        node: whom they must name; None: a process that is no node of the cluster, and serves clients alone.
        client_ca: the file with the CAs of clients, where a listener asks those for certificates.

    Raises:
        InvalidConfig: they cannot be used; the text says which file, and why.
    """
    if not config.on:
        yield None
        return
    from headrace_common.runtime.tls_config import TlsFiles
    from headrace_common.runtime.tls_watch import LiveBundle, TlsMetrics

    assert config.cert is not None, "checked with the settings"
    assert config.key is not None, "checked with the settings"
    assert config.ca is not None, "checked with the settings"
    files = TlsFiles(config.cert, config.key, config.ca)
    wanted, metrics = wanted_of(node, config.trust_domain), TlsMetrics(meter)
    live = LiveBundle("service", files, wanted, clock, metrics)
    of_clients = None
    if client_ca is not None:  # apart: what is wrong with their file stops no new certificate of a node
        of_clients = LiveBundle("mtls", replace(files, client_ca=client_ca), wanted, clock, metrics)
        tasks.start(of_clients.run(), name="watch certificates of clients' CAs")
    host = "" if node is None else host_of(node.role.value)
    certificates, cas = Certificates(live.bundle.pem), Certificates(Pem(live.bundle.pem.ca))
    tls = ServiceTls(
        live,
        certificates,
        cas,
        config.trust_domain,
        host,
        config.ca,
        of_clients,
        also_plain=not config.only,
        dials=config.dials,
    )
    used = live.bundle

    async def take(bundle: Bundle) -> None:
        nonlocal used
        grace_ms = 0.0 if bundle.distrusts(used) else GRACE_MS
        used = bundle
        tasks.start(tls.certificates.renew(bundle.pem, grace_ms=grace_ms), name="channels with new certificates")
        if bundle.pem.ca != tls.cas.pem.ca:
            tasks.start(tls.cas.renew(Pem(bundle.pem.ca), grace_ms=grace_ms), name="channels with new CAs")

    with live.takes(take, live.bundle):
        tasks.start(live.run(), name="watch certificates")
        yield tls


def wanted_of(node: NodeKey | None, trust_domain: str) -> Wanted:
    """What the certificate of ``node`` has to say; None: of a process that is no node, and serves clients alone."""
    from headrace_common.runtime.tls import Wanted

    if node is None:
        return Wanted(client=False)
    uri = uri_of(trust_domain, node.role.value)
    return Wanted(frozenset({host_of(node.role.value)}), frozenset({uri, f"{uri}/{node.id}"}))
