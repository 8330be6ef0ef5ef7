"""The table of limits against the descriptors, and what a request above one gets, over real connections."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import Descriptor

import headrace_proto.v1
from headrace_common.core.access.changes import BATCH_MAX
from headrace_common.core.access.grants import SCOPE_GRANTS_MAX
from headrace_common.core.errors import Rejected
from headrace_common.rpc.channels import open_channel
from headrace_common.rpc.counts import LIMITS, counting
from headrace_common.rpc.status import error_from_rpc
from headrace_common.runtime.service import GrpcService, ServerConfig
from headrace_proto.v1 import access_pb2, broker_pb2, broker_pb2_grpc, controller_pb2


def lists_of(message: Descriptor, path: tuple[str, ...] = ()) -> Iterator[str]:
    """All lists and maps in a message, by the names on the way there."""
    for field in message.fields:
        here = (*path, field.name)
        inner = field.message_type
        is_map = inner is not None and inner.GetOptions().map_entry
        if field.is_repeated:
            yield ".".join(here)
        if is_map:
            assert not list(lists_of(inner)), f"{here}: lists in the values of a map cannot be counted"
        elif inner is not None:
            assert inner is not message, f"{here}: what nests in itself cannot be counted"
            yield from lists_of(inner, here)


def all_lists() -> dict[str, list[str]]:
    """By operation, for each operation that has any."""
    found: dict[str, list[str]] = {}
    for module in pkgutil.iter_modules(headrace_proto.v1.__path__):
        if not module.name.endswith("_pb2"):
            continue
        descriptor = importlib.import_module(f"headrace_proto.v1.{module.name}").DESCRIPTOR
        for service in descriptor.services_by_name.values():
            for method in service.methods:
                if names := list(lists_of(method.input_type)):
                    found[f"{service.name}/{method.name}"] = names
    return found


def test_every_list_of_every_request_has_a_limit_and_nothing_else_has_one() -> None:
    assert {method: sorted(limits) for method, limits in LIMITS.items()} == {
        method: sorted(names) for method, names in all_lists().items()
    }


def test_outer_lists_are_counted_before_those_in_them() -> None:
    for method, limits in LIMITS.items():
        seen: set[str] = set()
        for path in limits:
            outer = {one for one in limits if path.startswith(f"{one}.")}
            assert outer <= seen, f"{method}: {path} is counted before {outer - seen}"
            seen.add(path)


def test_nested_lists_are_counted_over_the_whole_request() -> None:
    read = counting("/headrace.v1.Controller/AlterPartitions", controller_pb2.AlterPartitionsRequest.FromString)
    isr = [controller_pb2.IsrMember()] * 100

    def request(partitions: int) -> bytes:
        entries = [controller_pb2.AlterPartition(isr=isr)] * partitions
        entries.append(controller_pb2.AlterPartition(isr=isr[:1]))
        return controller_pb2.AlterPartitionsRequest(partitions=entries).SerializeToString()

    assert len(read(request(999)).partitions) == 1_000
    with pytest.raises(Rejected, match=r"1001 partitions; 1000 is the most"):
        read(request(1_000))
    flat = [controller_pb2.AlterPartition(isr=isr * 101)] * 10
    raw = controller_pb2.AlterPartitionsRequest(partitions=flat).SerializeToString()
    with pytest.raises(Rejected, match=r"101000 partitions\.isr; 100000 is the most"):
        read(raw)


def test_a_whole_batch_of_changes_and_a_whole_scope_are_taken() -> None:
    one = access_pb2.Grant(operations=["READ", "WRITE"], type="TOPIC", pattern="a")
    changes = [access_pb2.AccessChange(rule=access_pb2.AccessRule(principal="User:a", grant=one))] * BATCH_MAX
    for service in ("Admin", "Controller"):
        read = counting(f"/headrace.v1.{service}/AlterAccess", access_pb2.AlterAccessRequest.FromString)
        assert len(read(access_pb2.AlterAccessRequest(changes=changes).SerializeToString()).changes) == BATCH_MAX
        with pytest.raises(Rejected, match="1001 changes; 1000 is the most"):
            read(access_pb2.AlterAccessRequest(changes=[*changes, changes[0]]).SerializeToString())
        read = counting(f"/headrace.v1.{service}/CreateKey", access_pb2.CreateKeyRequest.FromString)
        scope = [one] * SCOPE_GRANTS_MAX
        assert len(read(access_pb2.CreateKeyRequest(scope=scope).SerializeToString()).scope) == SCOPE_GRANTS_MAX


class Blind(broker_pb2_grpc.BrokerServicer):
    """Counts what reaches it."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    async def Produce(self, requests: Any, context: Any) -> Any:
        async for request in requests:
            self.seen.append(request)
            yield broker_pb2.ProduceResponse(correlation_id=request.correlation_id)

    async def ListOffsets(self, request: Any, context: Any) -> Any:
        self.seen.append(request)
        return broker_pb2.ListOffsetsResponse()


@pytest.fixture
async def blind() -> AsyncIterator[tuple[Blind, Any]]:
    servicer = Blind()
    servicers = [(broker_pb2_grpc.add_BrokerServicer_to_server, servicer)]
    async with (
        GrpcService.open(ServerConfig(drain_ms_max=0), servicers, ["headrace.v1.Broker"]) as server,
        open_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        yield servicer, broker_pb2_grpc.BrokerStub(channel)


@pytest.mark.parametrize("count", [10_001, 500_000])
async def test_a_unary_request_above_it_gets_one_refusal_and_no_handler_sees_it(
    blind: tuple[Blind, Any], count: int
) -> None:
    servicer, stub = blind
    most = [broker_pb2.ListOffsetsPartition()] * 10_000
    await stub.ListOffsets(broker_pb2.ListOffsetsRequest(partitions=most))
    request = broker_pb2.ListOffsetsRequest.FromString(bytes([0x0A, 0]) * count)
    assert len(request.partitions) == count
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await stub.ListOffsets(request)
    error = error_from_rpc(raised.value)
    assert type(error) is Rejected
    assert str(error) == f"the request has {count} partitions; 10000 is the most: split it"
    assert len(servicer.seen) == 1


async def test_the_reader_of_a_stream_is_told(blind: tuple[Blind, Any]) -> None:
    servicer, stub = blind
    call = stub.Produce()
    await call.write(broker_pb2.ProduceRequest(correlation_id=1))
    assert (await call.read()).correlation_id == 1
    await call.write(broker_pb2.ProduceRequest(partitions=[broker_pb2.ProducePartition()] * 10_001))
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call.read()
    error = error_from_rpc(raised.value)
    assert type(error) is Rejected
    assert "10000 is the most" in str(error)
    assert len(servicer.seen) == 1
