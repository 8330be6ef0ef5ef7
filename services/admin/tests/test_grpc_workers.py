"""The adapter that asks workers of streams, against a server of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

import grpc.aio
import pyarrow as pa
import pytest
from libs.common.tests.kit.authority import Authority
from libs.common.tests.kit.closed import Rows, key_of, key_text

from headrace.securing import trust_in
from headrace_admin.adapters.grpc_workers import GrpcWorkers
from headrace_admin.ports import StoreFacts
from headrace_common.core.access.client_certificates import ClientCertificate
from headrace_common.core.access.principal import Principal, PrincipalType
from headrace_common.core.errors import (
    GroupAuthorizationFailed,
    NetworkFailed,
    NotCoordinator,
    Rejected,
    Unauthenticated,
)
from headrace_common.core.ids import Endpoint
from headrace_common.core.worker_address import WorkerAddress
from headrace_common.rpc.interceptor import ErrorInterceptor
from headrace_common.runtime.access_gate import current_bearer, current_shown
from headrace_common.runtime.certificates import Leaf, leaf_of
from headrace_common.runtime.clock import SystemClock
from headrace_proto.v1 import streams_pb2 as pb
from headrace_proto.v1 import streams_pb2_grpc
from headrace_proto.v1.tickets_pb2 import IssueTicketRequest, IssueTicketResponse

ROWS = pa.table({"user": ["ann", "ann"], "n": [1, 2]})
KEYS = pa.schema([pa.field("user", pa.string()), pa.field("day", pa.date32())])


class Servicer(streams_pb2_grpc.StreamsQueryServicer):
    closed = False
    shown: ClassVar[list[tuple[str, bytes, Any]]] = []

    def _let_in(self, request: Any, context: Any, store: str) -> None:
        self.shown.append((store, request.ticket, context.invocation_metadata()))
        if self.closed and request.ticket != f"for {store}".encode():
            raise Unauthenticated("show a ticket")

    async def DescribeStores(self, request: pb.DescribeStoresRequest, context: Any) -> pb.DescribeStoresResponse:
        self._let_in(request, context, "")
        stores = [
            pb.StreamsStore(name="a", sub_topology="x", partitions=2, key_schema=KEYS.serialize().to_pybytes()),
            pb.StreamsStore(name="b", sub_topology="y", partitions=1),
        ]
        return pb.DescribeStoresResponse(stores=stores)

    async def LocateKey(self, request: pb.LocateKeyRequest, context: Any) -> pb.LocateKeyResponse:
        self._let_in(request, context, request.store)
        return pb.LocateKeyResponse(key="|".join(request.columns).encode(), partition=1)

    async def QueryStore(self, request: pb.QueryStoreRequest, context: Any) -> AsyncIterator[pb.QueryStoreResponse]:
        self._let_in(request, context, request.store)
        if request.store == "moved":
            raise NotCoordinator("elsewhere")
        if request.store == "none":
            return
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, ROWS.schema) as writer:
            writer.write_table(ROWS)
        whole = sink.getvalue().to_pybytes()
        for start in range(0, len(whole), 100):
            yield pb.QueryStoreResponse(arrow=whole[start : start + 100])


@pytest.fixture
async def at() -> AsyncIterator[WorkerAddress]:
    server = grpc.aio.server(interceptors=[ErrorInterceptor()])
    streams_pb2_grpc.add_StreamsQueryServicer_to_server(Servicer(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield WorkerAddress(Endpoint("127.0.0.1", port))
    await server.stop(None)


async def no_ticket(request: IssueTicketRequest) -> IssueTicketResponse:
    raise AssertionError("nobody asked for one")


class Brokers:
    """Makes tickets for alice."""

    def __init__(self, life_ms: int = 60_000) -> None:
        self.asked: list[IssueTicketRequest] = []
        self.life_ms = life_ms

    async def issue_ticket(self, request: IssueTicketRequest) -> IssueTicketResponse:
        self.asked.append(request)
        if current_bearer() != key_text("alice"):
            raise GroupAuthorizationFailed("it may not READ GROUP billing")
        return IssueTicketResponse(ticket=f"for {request.audience.purpose}".encode(), life_ms=self.life_ms)


async def test_a_worker_is_asked(at: WorkerAddress) -> None:
    workers = GrpcWorkers(10_000, no_ticket, SystemClock())
    assert await workers.stores("billing", at) == [
        StoreFacts("a", "x", 2, {"user": "string", "day": "date32[day]"}),
        StoreFacts("b", "y", 1, {}),
    ]
    located = await workers.locate("billing", at, pb.LocateKeyRequest(store="a", columns=["ann", "1"]))
    assert (located.key, located.partition) == (b"ann|1", 1)
    assert await workers.rows("billing", at, pb.QueryStoreRequest(store="a")) == ROWS.to_pylist()
    assert await workers.rows("billing", at, pb.QueryStoreRequest(store="none")) == []
    with pytest.raises(NotCoordinator, match="elsewhere"):
        await workers.rows("billing", at, pb.QueryStoreRequest(store="moved"))
    await workers.close()


async def test_a_worker_that_is_gone() -> None:
    workers = GrpcWorkers(10_000, no_ticket, SystemClock())
    with pytest.raises(NetworkFailed, match="the connection failed"):
        await workers.stores("billing", WorkerAddress(Endpoint("127.0.0.1", 1)))
    await workers.close()


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Servicer, "closed", True)
    monkeypatch.setattr(Servicer, "shown", [])


def asking(name: str) -> AbstractContextManager[Any]:
    """As the handler of a call of this user."""
    access = Rows(keys=[key_of("alice"), key_of("bob")]).access()
    return access.serving(access.authenticate(key_text(name), "127.0.0.1"))


@pytest.mark.usefixtures("closed")
async def test_a_worker_of_a_closed_cluster_is_shown_tickets_of_the_caller(at: WorkerAddress) -> None:
    brokers = Brokers()
    workers = GrpcWorkers(10_000, brokers.issue_ticket, SystemClock())
    with asking("alice"):
        for _ in range(3):
            assert len(await workers.stores("billing", at)) == 2
            await workers.locate("billing", at, pb.LocateKeyRequest(store="a", columns=["ann"]))
            assert await workers.rows("billing", at, pb.QueryStoreRequest(store="a")) == ROWS.to_pylist()
    assert [(one.audience.group, one.audience.endpoint, one.audience.purpose) for one in brokers.asked] == [
        ("billing", str(at), ""),
        ("billing", str(at), "a"),
    ]
    assert {(one.operation, one.type, one.name) for asked in brokers.asked for one in asked.questions} == {
        ("READ", "GROUP", "billing")
    }
    with asking("bob"):
        for _ in range(2):
            with pytest.raises(GroupAuthorizationFailed):
                await workers.rows("billing", at, pb.QueryStoreRequest(store="a"))
    assert "hrk_" not in repr(Servicer.shown), "no worker sees a credential"
    await workers.close()


@pytest.mark.usefixtures("closed")
async def test_callers_with_certificates_have_tickets_of_their_own(at: WorkerAddress) -> None:
    """They show no credential, so it does not tell them apart."""
    asked: list[str] = []

    async def issue(request: IssueTicketRequest) -> IssueTicketResponse:
        asked.append(str(current_shown().caller.principal))
        return IssueTicketResponse(ticket=b"for ", life_ms=60_000)

    workers, access = GrpcWorkers(10_000, issue, SystemClock()), Rows().access()
    for name in ("one", "two", "one"):
        owner = Principal(PrincipalType.CERT, name)
        certificate = ClientCertificate(owner, "", 10**15, name)
        with access.serving(access.authenticate(None, "127.0.0.1", certificate)):
            await workers.stores("billing", at)
    assert asked == ["Cert:one", "Cert:two"]
    await workers.close()


@pytest.mark.usefixtures("closed")
async def test_a_ticket_that_ends_soon_is_not_shown(at: WorkerAddress) -> None:
    brokers = Brokers(life_ms=5_000)
    workers = GrpcWorkers(10_000, brokers.issue_ticket, SystemClock())
    with asking("alice"):
        await workers.stores("billing", at)
        await workers.stores("billing", at)
    assert len(brokers.asked) == 2
    await workers.close()


@asynccontextmanager
async def by_tls(authority: Authority, leaf: Leaf) -> AsyncIterator[Endpoint]:
    """A worker that shows ``leaf``."""
    pair = authority.make(leaf)
    server = grpc.aio.server(interceptors=[ErrorInterceptor()])
    streams_pb2_grpc.add_StreamsQueryServicer_to_server(Servicer(), server)
    credentials = grpc.ssl_server_credentials([(pair.key_pem, pair.certificate_pem)])
    endpoint = Endpoint("127.0.0.1", server.add_secure_port("127.0.0.1:0", credentials))
    await server.start()
    yield endpoint
    await server.stop(None)


async def test_a_worker_that_speaks_tls_is_asked_by_who_knows_its_ca(tmp_path: Path) -> None:
    authority = Authority()
    trust = trust_in(authority.files(tmp_path).ca)
    workers, without = (GrpcWorkers(10_000, no_ticket, SystemClock(), one) for one in (trust, None))
    async with by_tls(authority, Leaf("worker", frozenset({"127.0.0.1"}))) as endpoint:
        for at in (WorkerAddress(endpoint, tls=True), WorkerAddress(endpoint, tls=True, by_kind=True)):
            with pytest.raises(Rejected, match="tls_ca"):
                await without.stores("billing", at)
        assert [one.name for one in await workers.stores("billing", WorkerAddress(endpoint, tls=True))] == ["a", "b"]
    for one in (workers, without):
        await one.close()


@pytest.mark.parametrize(
    ("leaf", "by_kind", "by_host"),
    [
        (leaf_of("streams", (), "headrace"), True, False),
        (leaf_of("streams", ["127.0.0.1"], "headrace"), True, True),
        (leaf_of("connect", ["127.0.0.1"], "headrace"), False, True),
        (leaf_of("broker", (), "headrace"), False, False),
    ],
)
async def test_a_worker_is_known_by_its_kind_and_never_by_a_name_of_its_own(
    tmp_path: Path, leaf: Leaf, by_kind: bool, by_host: bool
) -> None:
    """Also where one member says the one of an address, and another member the other."""
    authority = Authority()
    workers = GrpcWorkers(10_000, no_ticket, SystemClock(), trust_in(authority.files(tmp_path).ca))
    async with by_tls(authority, leaf) as endpoint:
        for kind, fits in ((True, by_kind), (False, by_host), (True, by_kind)):
            at = WorkerAddress(endpoint, tls=True, by_kind=kind)
            with nullcontext() if fits else pytest.raises(NetworkFailed):
                assert len(await workers.stores("billing", at)) == 2
    await workers.close()
