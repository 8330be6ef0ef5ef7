"""Which certificates nodes show, as messages of the wire."""

from __future__ import annotations

from headrace_admin.engine.certificates import NodeCertificates, Told
from headrace_common.rpc.convert_certificates import served_to_proto
from headrace_proto.v1 import admin_pb2, certificates_pb2


async def described(
    certificates: NodeCertificates, request: admin_pb2.DescribeCertificatesRequest
) -> admin_pb2.DescribeCertificatesResponse:
    """The answer, of all nodes or of this process alone."""
    if request.here:
        told = [await certificates.here(look=request.look)]
    else:
        told = await certificates.gather(look=request.look)
    return admin_pb2.DescribeCertificatesResponse(nodes=map(_node, told))


def _node(told: Told) -> certificates_pb2.NodeCertificates:
    return certificates_pb2.NodeCertificates(
        node=str(told.node), fault=told.error, bundles=served_to_proto(told.served)
    )
