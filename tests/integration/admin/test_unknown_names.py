"""
Every administrative call about names, partitions and numbers that do not exist: a typed error or an empty answer, soon,
and no process fails inside. The requests are made from the descriptors, so a new call or field is in it by itself.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import grpc
import httpx
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from tests.integration.admin.conftest import JSON

from headrace import Producer
from headrace.securing import security_of
from headrace_cli.local import LocalCluster
from headrace_common.rpc.channels import open_channel
from headrace_common.rpc.status import error_from_rpc
from headrace_proto.v1 import admin_pb2, cluster_pb2, errors_pb2
from headrace_proto.v1.admin_pb2_grpc import AdminStub
from headrace_proto.v1.broker_pb2 import MetadataRequest
from headrace_proto.v1.broker_pb2_grpc import BrokerStub

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

SECONDS: Final = 20.0
"""Longer than any of these takes, shorter than a call that waits for what will never be."""
METHODS: Final = {m.name: m for m in admin_pb2.DESCRIPTOR.services_by_name["Admin"].methods}
TEXTS: Final = ("nosuch", "", ".", "a/b", "ü\N{SNOWMAN}", "x\0y", "n" * 300, "there")
NUMBERS: Final = (1, 0, -1, -(2**31), 2**31 - 1)
LONG_NUMBERS: Final = (*NUMBERS, -(2**63), 2**63 - 1)
BYTES: Final = (b"\x01" * 16, b"", b"x", bytes(16), b"\xff" * 17)
ALWAYS_PLANNED: Final = {"CreateTopics", "CreatePartitions", "RebalanceCluster", "IncrementalAlterConfigs"}
"""What they do to names that do not exist yet, or to all at once, is not undone."""
UNKNOWN_BROKER: Final = 2**31 - 2
BROKERS: Final = {"broker_id", "id", "replicas", "brokers"}
EXPECTED: Final = {
    "DeleteTopics": "UNKNOWN_TOPIC_OR_PARTITION",
    "DescribeTopics": "UNKNOWN_TOPIC_OR_PARTITION",
    "CreatePartitions": "UNKNOWN_TOPIC_OR_PARTITION",
    "DescribeConfigs": "UNKNOWN_TOPIC_OR_PARTITION",
    "IncrementalAlterConfigs": "UNKNOWN_TOPIC_OR_PARTITION",
    "DeleteRecords": "UNKNOWN_TOPIC_ID",
    "DescribeLogs": "RESOURCE_NOT_FOUND",
    "UnregisterNode": "RESOURCE_NOT_FOUND",
    "DrainBroker": "RESOURCE_NOT_FOUND",
    "DecommissionBroker": "RESOURCE_NOT_FOUND",
    "ResetOffsets": "UNKNOWN_TOPIC_OR_PARTITION",
    "DescribeGroups": "GROUP_ID_NOT_FOUND",
    "DescribeGroupLag": "GROUP_ID_NOT_FOUND",
    "DeleteGroups": "GROUP_ID_NOT_FOUND",
    "DeleteOffsets": "GROUP_ID_NOT_FOUND",
    "DescribeTransactions": "TRANSACTIONAL_ID_NOT_FOUND",
    "AbortTransaction": "TRANSACTIONAL_ID_NOT_FOUND",
    "AbortHangingTransaction": "UNKNOWN_TOPIC_OR_PARTITION",
    "RebalanceCluster": "UNKNOWN_TOPIC_OR_PARTITION",
    "ElectLeaders": "UNKNOWN_TOPIC_OR_PARTITION",
    "AlterReassignments": "UNKNOWN_TOPIC_OR_PARTITION",
}
"""What is said where everything that is named is unknown."""


@dataclass(frozen=True)
class Known:
    """A cluster that has a topic, a group and a transactional id, so that its coordinators are at work."""

    cluster: LocalCluster
    stub: Any


@pytest.fixture(scope="module")
def prepared(shared: LocalCluster) -> LocalCluster:
    with httpx.Client(base_url=shared.admin_url, timeout=60, headers={**JSON, **shared.authorization}) as http:
        assert http.post("/v1/topics", json={"name": "there", "partitions": 2}).status_code == 201
        reset = {"to": "earliest", "topics": [{"topic": "there"}], "execute": True}
        assert http.post("/v1/groups/there/offsets/reset", json=reset).status_code == 200
    with Producer(shared.bootstrap_servers, transactional_id="there") as producer, producer.transaction():
        producer.send("there", b"x")
    return shared


@pytest.fixture
async def known(prepared: LocalCluster) -> AsyncIterator[Known]:
    async with open_channel(prepared.bootstrap_servers[0], security_of(prepared.address)) as channel:
        nodes = (await BrokerStub(channel).Metadata(MetadataRequest())).nodes
    (admin,) = [n for n in nodes if n.role == cluster_pb2.ADMIN]
    async with open_channel(f"{admin.grpc.host}:{admin.grpc.port}", security_of(prepared.address)) as channel:
        yield Known(prepared, AdminStub(channel))


def choices(field: FieldDescriptor, method: str) -> tuple[Any, ...]:
    """Values of a field, the one that is taken where another field varies first."""
    match field.type:
        case FieldDescriptor.TYPE_STRING:
            return TEXTS
        case FieldDescriptor.TYPE_BYTES:
            return BYTES
        case FieldDescriptor.TYPE_BOOL if field.name == "validate_only" and method in ALWAYS_PLANNED:
            return (True,)
        case FieldDescriptor.TYPE_BOOL:
            return (False, True) if field.name != "validate_only" else (True, False)
        case FieldDescriptor.TYPE_ENUM:
            named = [value.number for value in field.enum_type.values if value.number]
            return (*named, 0, 99)
        case _ if field.name in BROKERS:
            return (UNKNOWN_BROKER, -1, -(2**31), 2**31 - 1)
        case FieldDescriptor.TYPE_INT64 | FieldDescriptor.TYPE_SINT64 | FieldDescriptor.TYPE_SFIXED64:
            return LONG_NUMBERS
        case FieldDescriptor.TYPE_UINT32 | FieldDescriptor.TYPE_FIXED32:
            return (1, 0, 2**32 - 1)
        case FieldDescriptor.TYPE_UINT64 | FieldDescriptor.TYPE_FIXED64:
            return (1, 0, 2**64 - 1)
        case _:
            return NUMBERS


def requests(kind: Descriptor, method: str, depth: int = 0) -> Iterator[Message]:
    """Messages with one field at a time varied; in the first every field has its first value."""
    usual: dict[str, Any] = {}
    varied: list[dict[str, Any]] = [{}]
    taken_oneofs: set[str] = set()
    for field in kind.fields:
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            if depth > 3:
                continue
            values: list[Any] = list(requests(field.message_type, method, depth + 1))
        else:
            values = list(choices(field, method))
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            values = [{one.key: one.value} for one in values]
        elif field.is_repeated:
            values = [[values[0]], *([value] for value in values[1:]), [], [values[0], values[0]]]
        oneof = field.containing_oneof
        if oneof is not None and len(oneof.fields) > 1:
            varied += [
                {field.name: value, **{f.name: None for f in oneof.fields if f is not field}} for value in values
            ]
            if oneof.name in taken_oneofs:
                continue
            taken_oneofs.add(oneof.name)
        else:
            varied += [{field.name: value} for value in values[1:]]
        usual[field.name] = values[0]
    for changes in varied:
        fields = {name: value for name, value in (usual | changes).items() if value is not None}
        yield GetMessageClass(kind)(**fields)


def codes(message: Message) -> Iterator[str]:
    """All error codes that an answer has, NONE aside."""
    for field, value in message.ListFields():
        values = value if field.is_repeated else [value]
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for one in values:
                yield from codes(one)
        elif field.type == FieldDescriptor.TYPE_ENUM and field.enum_type.name == "ErrorCode":
            yield from (errors_pb2.ErrorCode.Name(one) for one in values if one != errors_pb2.NONE)


async def said(known: Known, method: str, request: Message) -> list[str]:
    """The codes of an answer, or of the refusal of the whole call."""
    try:
        return list(codes(await getattr(known.stub, method)(request, timeout=SECONDS)))
    except grpc.aio.AioRpcError as error:
        return [error_from_rpc(error).code.name]


def failures_inside(cluster: LocalCluster) -> list[str]:
    """What any process logged about a failure that nobody foresaw."""
    lines = (
        line for log in cluster.directory.logs.glob("*.log") for line in log.read_text(errors="replace").splitlines()
    )
    return [line[:2_000] for line in lines if "unexpected failure" in line or "a request failed inside" in line]


@pytest.mark.parametrize("method", METHODS)
async def test_calls_about_what_does_not_exist(known: Known, method: str) -> None:
    wrong = []
    for request in requests(METHODS[method].input_type, method):
        answer = await said(known, method, request)
        if {"UNKNOWN_SERVER_ERROR", "REQUEST_TIMED_OUT"} & {*answer}:
            wrong.append((str(request), answer))
    assert wrong == []
    assert failures_inside(known.cluster) == []


@pytest.mark.parametrize("method", EXPECTED)
async def test_what_is_unknown_has_the_code_of_the_field(known: Known, method: str) -> None:
    first = next(requests(METHODS[method].input_type, method))
    assert EXPECTED[method] in await said(known, method, first), first


async def test_a_reset_of_a_partition_below_zero_of_no_topic(known: Known) -> None:
    request = admin_pb2.ResetOffsetsRequest(group_id="g", to=admin_pb2.EARLIEST)
    request.partitions.add(topic="nosuch", partitions=[-1])
    assert await said(known, "ResetOffsets", request) == ["UNKNOWN_TOPIC_OR_PARTITION"]


def test_rest_about_what_does_not_exist(prepared: LocalCluster) -> None:
    values = [*(text for text in TEXTS if text not in {"there", "."}), *map(str, NUMBERS[2:]), str(2**63), "1e3", "٣"]
    wrong = []
    with httpx.Client(base_url=prepared.admin_url, timeout=60, headers={**JSON, **prepared.authorization}) as http:
        paths = http.get("/openapi.json").json()["paths"]
        for path, verbs in paths.items():
            names = re.findall(r"{(\w+)}", path)
            for at in range(len(names)):
                for value in values:
                    url = path
                    for n, name in enumerate(names):
                        usual = "nosuch" if name in {"topic", "group", "transactional_id"} else "77"
                        url = url.replace(f"{{{name}}}", quote(value if n == at else usual, safe=""))
                    for verb in verbs:
                        answer = http.request(verb, url)
                        if not 400 <= answer.status_code < 500:
                            wrong.append((verb, url, answer.status_code, answer.text[:200]))
    assert wrong == []
    assert failures_inside(prepared) == []
