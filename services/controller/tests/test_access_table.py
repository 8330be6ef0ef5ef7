"""What a controller asks for each operation: the table is of the whole service, and fits who may call at all."""

from __future__ import annotations

from headrace_common.core.node_rules import WHO_MAY_CALL
from headrace_common.rpc.access_rules import NODES
from headrace_controller.rpc.access_table import ACCESS
from headrace_proto.v1 import certificates_pb2
from headrace_proto.v1.controller_pb2 import DESCRIPTOR


def test_every_operation_has_a_row_and_no_row_is_of_another() -> None:
    services = (DESCRIPTOR.services_by_name["Controller"], certificates_pb2.DESCRIPTOR.services_by_name["Certificates"])
    assert set(ACCESS) == {f"{service.name}/{method.name}" for service in services for method in service.methods}


def test_what_is_asked_of_nobody_is_for_nodes_alone() -> None:
    assert all(WHO_MAY_CALL[operation] for operation, rule in ACCESS.items() if rule is NODES)
