"""``Certificates``: a node says which certificates it shows and whom it trusts. Brokers, coordinators and controllers
have it; an admin process asks it, and says the same of itself."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from headrace_common.core.image import NodeKey
from headrace_common.rpc.convert_certificates import served_to_proto
from headrace_common.runtime.service_tls import ServiceTls
from headrace_proto.v1 import certificates_pb2 as pb
from headrace_proto.v1.certificates_pb2_grpc import CertificatesServicer as GeneratedServicer


class CertificatesServicer(GeneratedServicer):
    """One for all servers of a process."""

    def __init__(self, key: NodeKey, tls: ServiceTls | None) -> None:
        self._key = key
        self._tls = tls

    @override
    async def DescribeServed(self, request: pb.DescribeServedRequest, context: Any) -> pb.NodeCertificates:
        served = [] if self._tls is None else await self._tls.served(look=request.look)
        return pb.NodeCertificates(node=str(self._key), bundles=served_to_proto(served))
