"""The ``Nodes`` port: asks any node of the cluster, at the address the image has for it now."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from headrace_common.core.access.observed import Report
from headrace_common.core.access.refusals import Remembered
from headrace_common.core.ids import Endpoint
from headrace_common.core.image import Node, NodeKey, Role
from headrace_common.core.served_certificates import Served
from headrace_common.rpc.calls import CallTo
from headrace_common.rpc.channels import PLAIN, Channels, Security
from headrace_common.rpc.convert_certificates import served_from_proto
from headrace_common.rpc.convert_observed import refused_from_proto, report_from_proto
from headrace_common.rpc.node_gate import FORWARDED_KEY
from headrace_common.runtime.access_gate import AUTHORIZATION_KEY, by_itself
from headrace_common.runtime.service_tls import ServiceTls
from headrace_proto.v1 import access_pb2 as pb
from headrace_proto.v1 import admin_pb2, certificates_pb2
from headrace_proto.v1.admin_pb2_grpc import AdminStub
from headrace_proto.v1.broker_pb2_grpc import BrokerStub
from headrace_proto.v1.certificates_pb2_grpc import CertificatesStub
from headrace_proto.v1.controller_pb2_grpc import ControllerStub
from headrace_proto.v1.coordinator_pb2_grpc import CoordinatorStub

_CHANNELS_MAX: Final = 100
_STUBS: Final[dict[Role, Any]] = {
    Role.BROKER: BrokerStub,
    Role.CONTROLLER: ControllerStub,
    Role.COORDINATOR: CoordinatorStub,
    Role.ADMIN: AdminStub,
}

Shown: TypeAlias = tuple[tuple[str, str], ...]


class GrpcNodes:
    """Channels are opened when first used; the newest ``_CHANNELS_MAX`` are kept until ``close``."""

    def __init__(
        self, key: NodeKey, timeout_ms: float, security: Security = PLAIN, tls: ServiceTls | None = None
    ) -> None:
        """``tls``: of this process."""
        self.key = key
        self._tls = tls
        self._timeout = timeout_ms / 1_000
        self._security = security
        self._channels: Channels[Endpoint] = Channels(security)

    async def observed(self, node: Node) -> Report:
        """What it has seen; an admin process tells what the running call's caller may know of it."""
        return report_from_proto(await self._observed(node, pb.ObservedRequest(here=True)))

    async def refused(self, node: Node, id: str) -> Remembered | None:
        """What it remembers of a refusal, as ``observed``."""
        return refused_from_proto(await self._observed(node, pb.ObservedRequest(here=True, refusal=id)))

    async def _observed(self, node: Node, request: pb.ObservedRequest) -> pb.ObservedResponse:
        await self._channels.trim(_CHANNELS_MAX)
        with CallTo(str(node.key)):
            if node.key.role is Role.ADMIN:
                return await self._ask(node, request, self._shown(str(node.inside)))
            with by_itself():  # who asks is shown what it may know
                return await self._ask(node, request, ())

    async def certificates(self, node: Node, *, look: bool) -> tuple[Served, ...]:
        """What it shows; another admin process tells what the running call's caller may know."""
        if node.key == self.key:
            return await self.own(look=look)
        await self._channels.trim(_CHANNELS_MAX)
        channel = self._channels.to(node.inside)
        with CallTo(str(node.key)):
            if node.key.role is Role.ADMIN:
                here = admin_pb2.DescribeCertificatesRequest(look=look, here=True)
                shown = self._shown(str(node.inside))
                answer = await AdminStub(channel).DescribeCertificates(here, timeout=self._timeout, metadata=shown)
                return served_from_proto(bundle for told in answer.nodes for bundle in told.bundles)
            with by_itself():
                request = certificates_pb2.DescribeServedRequest(look=look)
                served = await CertificatesStub(channel).DescribeServed(request, timeout=self._timeout)
                return served_from_proto(served.bundles)

    async def own(self, *, look: bool) -> tuple[Served, ...]:
        """What this process shows."""
        return () if self._tls is None else tuple(await self._tls.served(look=look))

    async def _ask(self, node: Node, request: pb.ObservedRequest, metadata: Shown) -> pb.ObservedResponse:
        stub: Any = _STUBS[node.key.role](self._channels.to(node.inside))
        answer: pb.ObservedResponse = await stub.Observed(request, timeout=self._timeout, metadata=metadata)
        return answer

    def _shown(self, target: str) -> Shown:
        """The caller's credential, as clients show it: an admin process takes no nodes where there is TLS."""
        if self._security.metadata is None:
            return ()
        bearer = dict(self._security.metadata(target)).get(FORWARDED_KEY)
        return ((AUTHORIZATION_KEY, f"Bearer {bearer.decode()}"),) if isinstance(bearer, bytes) and bearer else ()

    async def close(self) -> None:
        await self._channels.close()
