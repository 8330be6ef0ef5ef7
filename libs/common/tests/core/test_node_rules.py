"""The table of who may call what, against the descriptors, and what is said to others."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import headrace_proto.v1
from headrace_common.core.errors import Rejected
from headrace_common.core.ids import NodeId
from headrace_common.core.image import NodeKey, Role
from headrace_common.core.node_rules import ANYONE, WHO_MAY_CALL, foreign, node_key_of, refusal

BROKER = NodeKey(Role.BROKER, NodeId(1))


def operations() -> set[str]:
    found: set[str] = set()
    for module in pkgutil.iter_modules(headrace_proto.v1.__path__):
        if module.name.endswith("_pb2"):
            descriptor = importlib.import_module(f"headrace_proto.v1.{module.name}").DESCRIPTOR
            for service in descriptor.services_by_name.values():
                found |= {f"{service.name}/{method.name}" for method in service.methods}
    return found


def test_every_operation_of_every_service_has_its_row() -> None:
    assert set(WHO_MAY_CALL) == operations()


def test_what_changes_metadata_or_speaks_for_a_node_is_for_nodes() -> None:
    open_to_anyone = {operation for operation, allowed in WHO_MAY_CALL.items() if allowed is ANYONE}
    assert not {operation for operation in open_to_anyone if operation.startswith("Controller/")}
    assert not open_to_anyone & {"Broker/Replicate", "Broker/WriteTxnMarkers", "Coordinator/WriteTxnMarkers"}
    assert all(allowed is ANYONE or allowed for allowed in WHO_MAY_CALL.values())


def test_who_is_refused_is_told_what_to_do() -> None:
    brokers = frozenset({Role.BROKER})
    assert refusal("Broker/Replicate", brokers, BROKER) is None
    assert "--node-token-file" in str(refusal("Broker/Replicate", brokers, None))
    admin = NodeKey(Role.ADMIN, NodeId(3))
    assert (
        str(refusal("Broker/Replicate", brokers, admin)) == "Broker/Replicate is for broker nodes, and admin-3 is none"
    )
    assert "admin-3 cannot speak for broker-1" in str(foreign(admin, BROKER))


def test_names_of_nodes_are_read_as_they_are_written() -> None:
    for role in Role:
        key = NodeKey(role, NodeId(2**31 - 1))
        assert node_key_of(str(key)) == key
    no_ids = ("", "x", "+1", "1_0", " 1", "²", "1" * 5_000)
    for text in ("", "broker", "king-1", "-1", *(f"broker-{no_id}" for no_id in no_ids)):
        with pytest.raises(Rejected, match="names no node"):
            node_key_of(text)
