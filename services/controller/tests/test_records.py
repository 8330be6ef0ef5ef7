"""Records of other versions: what an older one wrote is read, and what a newer one adds is passed over."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from headrace_common.core.errors import UnsupportedVersion
from headrace_common.core.ids import Endpoint, NodeId
from headrace_common.core.image import Node, NodeKey, Role
from headrace_controller.core import records
from headrace_controller.core.records import Cluster

KEY = "nodes/broker/0"
BEFORE_EXTERNAL = (
    b'{"v":1,"grpc":"b:1","http":null,"metrics":null,"rack":null,"incarnation":"69696969696969696969696969696969",'
    b'"epoch":3,"fenced":true,"in_controlled_shutdown":false,"version":"","drained":false}'
)
"""As the version before external listeners wrote it; it takes nothing amiss that it does not know, and drops it."""
NODE = Node(NodeKey(Role.BROKER, NodeId(0)), Endpoint("b", 1), b"i" * 16, 3)


def test_a_node_of_an_older_version_has_no_external_address() -> None:
    assert records.decode(KEY, BEFORE_EXTERNAL) == NODE


def test_a_node_of_an_older_version_knows_no_feature_level() -> None:
    older = records.decode(KEY, BEFORE_EXTERNAL)
    assert isinstance(older, Node)
    assert older.feature_level_max == 0
    assert records.decode(KEY, records.encode(replace(NODE, feature_level_max=4))) == replace(NODE, feature_level_max=4)


BEFORE_LEVELS = b'{"v":1,"id":"c","incarnation":"69696969696969696969696969696969"}'
"""A cluster's record as the version before feature levels wrote it. It refuses every other ``v``, and ends."""


def test_a_cluster_without_a_level_is_at_level_0_and_is_written_as_the_older_version_wrote_it() -> None:
    cluster = Cluster("c", b"i" * 16)
    assert records.decode(records.CLUSTER_KEY, BEFORE_LEVELS) == cluster
    assert records.encode(cluster) == BEFORE_LEVELS


def test_a_cluster_that_has_risen_is_refused_by_controllers_from_before_there_were_levels() -> None:
    risen = Cluster("c", b"i" * 16, feature_level=1)
    written = records.encode(risen)
    assert json.loads(written)["v"] != json.loads(BEFORE_LEVELS)["v"]
    assert records.decode(records.CLUSTER_KEY, written) == risen
    with pytest.raises(UnsupportedVersion):
        records.decode(records.CLUSTER_KEY, written.replace(b'"v":2', b'"v":3'))


def test_the_other_addresses_are_kept() -> None:
    node = replace(NODE, external=Endpoint("e.example", 9), internal=Endpoint("b", 2))
    assert records.decode(KEY, records.encode(node)) == node
    node = replace(NODE, grpc=replace(NODE.grpc, server_name="broker.headrace"))
    assert records.decode(KEY, records.encode(node)) == node
    node = replace(node, mtls=Endpoint("b", 3, "broker.headrace"))
    assert records.decode(KEY, records.encode(node)) == node
    assert "mtls" not in json.loads(records.encode(NODE)), "who has no such listener writes what was written before"


def test_a_node_is_written_so_that_the_older_version_reads_it() -> None:
    written = json.loads(records.encode(replace(NODE, external=Endpoint("e.example", 9), internal=Endpoint("b", 2))))
    assert {name: written[name] for name in json.loads(BEFORE_EXTERNAL)} == json.loads(BEFORE_EXTERNAL)


def test_what_a_newer_version_adds_is_passed_over_and_another_record_version_is_refused() -> None:
    fields = json.loads(BEFORE_EXTERNAL)
    assert records.decode(KEY, json.dumps({**fields, "colour": "blue"}).encode()) == NODE
    with pytest.raises(UnsupportedVersion):
        records.decode(KEY, json.dumps({**fields, "v": 2}).encode())
