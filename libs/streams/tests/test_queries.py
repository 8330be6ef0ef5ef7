"""Questions to a worker over gRPC: keys of the right columns, and answers that contain a record."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from libs.common.tests.kit.authority import Authority
from opentelemetry.metrics import NoOpMeterProvider

from headrace.errors import WaitTimedOut
from headrace.records import RecordMetadata
from headrace.ticket_types import AccessQuestion, Ticket, TicketAudience
from headrace_common.core.errors import (
    GroupAuthorizationFailed,
    HeadraceError,
    InvalidConfig,
    LeaderNotAvailable,
    NetworkFailed,
    NotFound,
    OffsetNotAvailable,
    Rejected,
    Unauthenticated,
    UnsupportedVersion,
)
from headrace_common.core.ids import Endpoint
from headrace_common.rpc.channels import PLAIN, Security, open_channel
from headrace_common.rpc.credentials import Pem
from headrace_common.rpc.status import error_from_rpc
from headrace_common.runtime.certificates import Leaf, leaf_of
from headrace_common.runtime.clock import SystemClock
from headrace_common.runtime.service_tls import ServiceTls, open_tls
from headrace_common.runtime.tasks import TaskRunner
from headrace_common.runtime.tls_config import TlsConfig, TlsMode
from headrace_proto.v1 import streams_pb2 as pb
from headrace_proto.v1.streams_pb2_grpc import StreamsQueryStub
from headrace_streams import App, Stores, Stream, agg, json, session, stores, tumbling, value
from headrace_streams.adapters import grpc_queries
from headrace_streams.adapters.grpc_queries import open_queries
from headrace_streams.adapters.memory_store import MemoryStores
from headrace_streams.config import StreamsConfig
from headrace_streams.core.state import changelog
from headrace_streams.core.state.changelog import Progress
from headrace_streams.plan.cut import Assembly
from headrace_streams.ports import Checkpoint, Question
from headrace_streams.runtime import queries
from headrace_streams.runtime.assembling import Assembled
from headrace_streams.runtime.owned import Owned, Spec
from headrace_streams.runtime.queries import Queries
from headrace_streams.testing import Driver


def billing() -> App:
    app = App("billing")
    orders = app.stream("orders", value=json("product string, day int"), key="user")
    orders.group_by("user").agg(n=agg.count(), name="by-user").to("out")
    orders.group_by("product", "day", name="product").agg(n=agg.count(), name="by-product").to("out")
    return app


class Running:
    """One worker with all tasks of an app, whose rows were committed up to ``position``."""

    def __init__(self, partitions: int = 1) -> None:
        self.app = billing()
        self.disks = MemoryStores()
        self.queries = Queries(self._read)
        assembly = Assembly("billing", self.app.graph, {"orders": partitions})
        self.specs = {
            f"{part.name}/{n}": Spec(
                part, n, (*part.topics, *(f"billing.{hop.name}.repartition" for hop in part.hops)), {}
            )
            for part in assembly.parts
            for n in range(partitions)
        }
        self.queries.assembled = Assembled(assembly, self.specs, frozenset())
        self.queries.owned = {
            label: Owned(spec, None, self.disks.open(spec.part.name, spec.partition))  # type: ignore[arg-type]
            for label, spec in self.specs.items()
        }
        self.commit(0)
        self.reads = 0

    async def _read(self, call: Callable[..., Any], *args: Any) -> Any:
        self.reads += 1
        return call(*args)

    def commit(self, position: int, users: Sequence[str] = ("ann",)) -> None:
        """So many orders of each user."""
        with Driver(self.app) as driver:
            for user in users:
                driver.pipe("orders", [{"user": user, "product": "tea", "day": 12}] * position)
            driver.commit()
            kept = {at[0]: committed.stores for at, committed in driver._committed.items()}
        for spec in self.specs.values():
            changes = {name: list(cold.scan()) for name, cold in kept[spec.part.name].items()}
            progress = Progress(dict.fromkeys(spec.part.topics, position))
            disk = self.disks.open(spec.part.name, spec.partition)
            disk.write(changelog.rows(changes, progress), Checkpoint("log", position, 0))
        self.queries.notify()


async def everybody(ticket: bytes, endpoint: str, store: str) -> None:
    """As in an open cluster."""


class Door:
    """
    A closed cluster with some workers: it makes tickets of alice as brokers do, and lets in at the endpoint of each
    who has one for it. ``refused`` says why nobody has rights any more.
    """

    def __init__(self) -> None:
        self.made: list[TicketAudience] = []
        self.shown: list[tuple[bytes, str, str]] = []
        self.refused: HeadraceError | None = None
        self.over: set[bytes] = set()
        self.life_ms = 60_000

    def issue_ticket(self, audience: TicketAudience, questions: Sequence[AccessQuestion]) -> Ticket:
        """As the admin client."""
        assert questions == [AccessQuestion("READ", "GROUP", audience.group)]
        if self.refused is not None:
            raise self.refused
        self.made.append(audience)
        return Ticket(b"ticket %d" % len(self.made), self.life_ms)

    async def let_in(self, ticket: bytes, endpoint: str, store: str) -> None:
        """As a worker."""
        self.shown.append((ticket, endpoint, store))
        number = int(ticket.removeprefix(b"ticket ") or b"0")
        audience = TicketAudience("billing", endpoint, store)
        if ticket in self.over or not 1 <= number <= len(self.made) or self.made[number - 1] != audience:
            raise Unauthenticated("this cluster is closed: show a ticket")


@asynccontextmanager
async def asked(
    running: Running,
    monkeypatch: pytest.MonkeyPatch,
    timeout_ms: int = 30_000,
    owner: str = "m",
    follower: str = "nobody",
    door: Door | None = None,
    tls: ServiceTls | None = None,
    ca_file: Path | None = None,
) -> AsyncIterator[Callable[..., Any]]:
    """Asks a store, in a thread."""
    let_in = everybody if door is None else door.let_in
    async with open_queries(running.queries, Endpoint("127.0.0.1", 0), None, let_in, tls) as at:
        followers = (SimpleNamespace(member_id=follower),)
        items = [SimpleNamespace(id=label, owner=owner, followers=followers) for label in running.specs]
        at_of = {"m": str(at), "dead": "127.0.0.1:1"}
        members = [SimpleNamespace(member_id=name, endpoint=endpoint) for name, endpoint in at_of.items()]
        group = SimpleNamespace(members=members, items=items)
        admin = SimpleNamespace(describe_group=lambda app: group, close=lambda: None)
        if door is not None:
            admin.issue_ticket = door.issue_ticket
        monkeypatch.setattr(stores, "AdminClient", lambda servers: admin)
        with Stores("billing", timeout_ms=timeout_ms, ca_file=ca_file) as of:

            async def ask(store: str, call: str, *args: Any, **more: Any) -> Any:
                return await asyncio.to_thread(lambda: getattr(of[store], call)(*args, **more))

            yield ask


async def test_an_answer_waits_for_the_commit_that_contains_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    running = Running()
    async with asked(running, monkeypatch) as ask:
        running.commit(5)
        assert await ask("by-user", "get", "ann", at_least=("orders", 0, 4)) == {"user": "ann", "n": 5}
        waits = asyncio.create_task(ask("by-user", "get", "ann", at_least=RecordMetadata("orders", 0, 6, 0)))
        whole = asyncio.create_task(ask("by-user", "table", at_least=("orders", 0, 6)))
        before = running.reads
        while running.reads < before + 2:  # both have looked and found nothing
            await asyncio.sleep(0.001)
        running.commit(6)
        assert not waits.done()
        running.commit(7)
        assert await waits == {"user": "ann", "n": 7}
        assert (await whole).to_pylist() == [{"user": "ann", "n": 7}]


async def test_what_is_not_reached_is_told_with_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    running = Running()
    async with asked(running, monkeypatch, timeout_ms=0) as ask:
        running.commit(5)
        assert await ask("by-user", "get", "nobody", at_least=("orders", 0, 4)) is None
        with pytest.raises(WaitTimedOut, match=r"the records of orders-0 below 5, and not 5 so far; 0 s were waited"):
            await ask("by-user", "get", "ann", at_least=("orders", 0, 5))


async def test_what_cannot_be_waited_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    running = Running()
    async with asked(running, monkeypatch) as ask:
        with pytest.raises(
            Rejected, match=r"'by-product' cannot be waited for by a record of orders: its tasks read bil"
        ):
            await ask("by-product", "get", "tea", 12, at_least=("orders", 0, 1))
        with pytest.raises(Rejected, match="in partition 3 of orders, and the key in partition 0"):
            await ask("by-user", "get", "ann", at_least=("orders", 3, 1))
        with pytest.raises(Rejected, match="in partition 3; there are 1"):
            await ask("by-user", "table", at_least=("orders", 3, 1))
        with pytest.raises(Rejected, match="acks=0"):
            await ask("by-user", "get", "ann", at_least=("orders", 0, -1))


async def test_a_worker_that_does_not_know_of_records_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would answer at once, with whatever it has."""
    running = Running()

    class Before(grpc_queries.Servicer):
        async def QueryStore(self, request: Any, context: Any) -> AsyncIterator[Any]:
            request.ClearField("at_least")
            async for part in super().QueryStore(request, context):
                yield part

    monkeypatch.setattr(grpc_queries, "Servicer", Before)
    async with asked(running, monkeypatch) as ask:
        running.commit(1)
        assert await ask("by-user", "get", "ann") == {"user": "ann", "n": 1}
        with pytest.raises(UnsupportedVersion, match="is of a version that cannot wait for records"):
            await ask("by-user", "get", "ann", at_least=("orders", 0, 0))


async def test_keys_are_held_against_the_columns_of_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    running = Running()
    async with asked(running, monkeypatch) as ask:
        running.commit(2)
        row = {"product": "tea", "day": 12, "n": 2}
        assert await ask("by-product", "get", "tea", 12) == row
        assert await ask("by-product", "get", b'["tea",12]') == row
        assert await ask("by-product", "rows_of_texts", "tea", "12") == [row]
        for key in (["tea"], ["tea", "12"], [12, 12], [object(), 12]):
            with pytest.raises(Rejected, match="the keys of 'by-product' are: product string, day int32; "):
                await ask("by-product", "get", *key)
        with pytest.raises(Rejected, match="the keys of 'by-product' are: product string, day int32; 'x' is no int32"):
            await ask("by-product", "rows_of_texts", "tea", "x")


async def test_a_task_that_leaves_while_it_is_waited_for_is_looked_for_elsewhere() -> None:
    running = Running()
    question = Question("by-user", 0, b"ann", topic="orders", offset=3, wait_ms=0)
    with pytest.raises(HeadraceError, match="and not 3 so far"):
        await running.queries.rows(question)
    running.queries.owned = {}
    with pytest.raises(HeadraceError, match="task orders/0 is not at this worker now"):
        await running.queries.rows(question)
    with pytest.raises(NotFound, match="there is no store 'x'; there are: by-user, by-product"):
        running.queries.locate("x", ["ann"])


@pytest.mark.parametrize("owner", ["dead", "nobody"])
async def test_who_follows_a_task_answers_who_asks_for_no_more(monkeypatch: pytest.MonkeyPatch, owner: str) -> None:
    """With ``stale``: at once, also while the group still takes the owner for alive."""
    running = Running()
    running.commit(2)
    running.queries.owned, running.queries.followed = {}, running.queries.owned
    async with asked(running, monkeypatch, timeout_ms=0, owner=owner, follower="m") as ask:
        assert await ask("by-user", "get", "ann", stale=True) == {"user": "ann", "n": 2}
        assert (await ask("by-user", "table", stale=True)).to_pylist() == [{"user": "ann", "n": 2}]
        assert (await ask("by-user", "range", "a", "b", stale=True)).num_rows == 1
        assert await ask("by-user", "get", "ann", stale=True, at_least=("orders", 0, 1)) == {"user": "ann", "n": 2}
        with pytest.raises(WaitTimedOut, match="below 2, and not 2 so far"):
            await ask("by-user", "get", "ann", stale=True, at_least=("orders", 0, 2))
        with pytest.raises((LeaderNotAvailable, NetworkFailed)):
            await ask("by-user", "get", "ann")
    with pytest.raises(HeadraceError, match="task orders/0 is not at this worker now"):
        await running.queries.rows(Question("by-user", 0, b"ann"))


async def test_a_table_waits_only_for_the_task_that_reads_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    running = Running(2)
    async with asked(running, monkeypatch) as ask:
        running.commit(1)
        assert len(await ask("by-user", "table", at_least=("orders", 1, 0))) == 2
    request = pb.QueryStoreRequest(
        store="by-user", partition=0, at_least=pb.StreamsPosition(topic="orders", partition=1)
    )
    with pytest.raises(Rejected, match="task 0 of 'by-user' does not read partition 1 of orders"):
        await anext(aiter(grpc_queries.Servicer(running.queries, everybody).QueryStore(request, None)))


async def test_a_worker_waits_as_long_as_it_is_asked_to_and_a_second_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    running = Running()
    for longest, wait_ms in ((10**9, 0), (0, 10**9)):
        monkeypatch.setattr(queries, "_WAIT_MS_MAX", longest)
        with pytest.raises(OffsetNotAvailable):
            await running.queries.rows(Question("by-user", 0, topic="orders", offset=0, wait_ms=wait_ms))
    monkeypatch.setattr(queries, "_WAIT_MS_MAX", 10**9)
    waits = asyncio.create_task(running.queries.rows(Question("by-user", 0, topic="orders", offset=0, wait_ms=10**9)))
    before = running.reads
    while running.reads == before:
        await asyncio.sleep(0)
    running.commit(1)
    found = await waits
    assert found is not None
    assert found.to_pylist() == [{"user": "ann", "n": 1}]


async def test_keys_from_one_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    running = Running()
    async with asked(running, monkeypatch) as ask:
        running.commit(1, ["ann", "anna", "bob", "zoë", "zo"])

        async def users(*bounds: str | bytes | None) -> list[str]:
            return sorted((await ask("by-user", "range", *bounds)).column("user").to_pylist())

        assert await users("anna", "zo") == ["anna", "bob", "zo"]
        assert await users("b") == ["bob", "zo", "zoë"]
        assert await users(None, b"b") == ["ann", "anna"]
        assert len(await users()) == 5
        assert await users("zz", "a") == []
        with pytest.raises(Rejected, match=r"are: product string, day int32; only keys of one text have ranges"):
            await ask("by-product", "range", "a", "b")
        with pytest.raises(Rejected, match="takes text or bytes, not 1 and None"):
            await ask("by-user", "range", 1)
    request = pb.QueryStoreRequest(store="by-user", key=b"a", last_key=b"b")
    with pytest.raises(Rejected, match="ask for one key, or for those from"):
        await anext(aiter(grpc_queries.Servicer(running.queries, everybody).QueryStore(request, None)))


async def test_a_worker_that_does_not_know_ranges_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would tell all rows."""
    running = Running()

    class Before(grpc_queries.Servicer):
        async def QueryStore(self, request: Any, context: Any) -> AsyncIterator[Any]:
            request.ClearField("last_key")
            async for part in super().QueryStore(request, context):
                yield part

    monkeypatch.setattr(grpc_queries, "Servicer", Before)
    async with asked(running, monkeypatch) as ask:
        running.commit(1)
        with pytest.raises(UnsupportedVersion, match="does not know ranges"):
            await ask("by-user", "range", None, "b")


def _kept_by(kind: str, rows: Stream) -> object:
    if kind == "windows":
        return rows.group_by("k").window(tumbling(10), late="drop").agg(n=agg.count(), name="kept").to("out")
    if kind == "sessions":
        return rows.group_by("k").window(session(10), late="drop").agg(n=agg.count(), name="kept").to("out")
    if kind == "table":
        return rows.to_table(name="kept").to("out")
    if kind == "join":
        return rows.join(rows.select("k", m="n"), within=5, late="drop", name="kept").to("out")
    return rows.process(lambda row, state, context: setattr(state, "n", 1), name="kept", state={"n": value(int)}).to(
        "out"
    )


@pytest.mark.parametrize("kind", ["windows", "sessions", "table", "join", "function"])
def test_ranges_of_each_kind_of_store(kind: str) -> None:
    app = App("ranges")
    _kept_by(kind, app.stream("in", value=json("n bigint, at timestamp"), key="k", timestamp="at"))
    assembly = Assembly("ranges", app.graph, {"in": 1})
    with Driver(app) as driver:
        driver.pipe("in", [{"k": key, "n": 1, "at": at} for at in (0, 30) for key in ("a", "b", "bb", "c")])
        driver.commit()
        ((_, committed),) = driver._committed.items()
    cold = committed.stores["kept"]

    def keys(*bounds: bytes | None) -> list[str]:
        found = assembly.read("kept", 0, cold, None, *bounds)
        assert found is not None
        return sorted(
            {
                key.decode() if isinstance(key, bytes) else key
                for key in found.column("key" if "key" in found.column_names else "k").to_pylist()
            }
        )

    assert keys() == ["a", "b", "bb", "c"]
    assert keys(b"b", b"bb") == ["b", "bb"]
    assert keys(b"ba") == ["bb", "c"]
    assert keys(None, b"b") == ["a", "b"]


async def test_a_worker_that_asks_who_it_is_is_shown_a_ticket_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    running, door = Running(), Door()
    running.commit(5)
    async with asked(running, monkeypatch, door=door) as ask:
        assert await ask("by-user", "get", "ann") == {"user": "ann", "n": 5}
        assert [one.purpose for one in door.made] == ["", "by-user"]
        assert {one.endpoint for one in door.made} == {door.shown[0][1]}
        asked_before = len(door.shown)
        for _ in range(3):
            assert await ask("by-user", "get", "ann") == {"user": "ann", "n": 5}
        assert len(door.made) == 2
        assert {ticket for ticket, *_ in door.shown[asked_before:]} == {b"ticket 2"}
        await ask("by-product", "table")
        assert [one.purpose for one in door.made] == ["", "by-user", "by-product"]


async def test_a_ticket_that_is_over_is_followed_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    running, door = Running(), Door()
    async with asked(running, monkeypatch, door=door) as ask:
        await ask("by-user", "get", "ann")
        door.over.add(b"ticket 2")  # as when the broker that made it was started again
        await ask("by-user", "get", "ann")
        assert len(door.made) == 3
        door.life_ms = 5_000
        door.over.add(b"ticket 3")
        await ask("by-user", "get", "ann")
        shown = len(door.shown)
        await ask("by-user", "get", "ann")  # the one that it has ends soon: it is not even tried
        assert [ticket for ticket, *_ in door.shown[shown:]] == [b"ticket 5"]


async def test_who_gets_no_ticket_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    running, door = Running(), Door()
    door.refused = GroupAuthorizationFailed("User:alice may not READ GROUP billing")
    async with asked(running, monkeypatch, door=door) as ask:
        with pytest.raises(GroupAuthorizationFailed, match="User:alice may not"):
            await ask("by-user", "get", "ann")
    assert running.reads == 0


async def test_nothing_is_answered_without_a_ticket() -> None:
    running, door = Running(), Door()
    async with (
        open_queries(running.queries, Endpoint("127.0.0.1", 0), None, door.let_in) as at,
        open_channel(str(at)) as channel,
    ):
        stub = StreamsQueryStub(channel)
        for call in (
            stub.DescribeStores(pb.DescribeStoresRequest()),
            stub.LocateKey(pb.LocateKeyRequest(store="by-user", columns=["ann"])),
            anext(aiter(stub.QueryStore(pb.QueryStoreRequest(store="by-user")))),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call
            assert isinstance(error_from_rpc(refused.value), Unauthenticated)
    assert sorted(store for *_, store in door.shown) == ["", "by-user", "by-user"]
    assert running.reads == 0


# --- by TLS --------------------------------------------------------------------------------------------------------

BY_HOST = Leaf("worker", frozenset({"127.0.0.1"}))
BY_KIND = leaf_of("streams", (), "headrace")


@asynccontextmanager
async def shown_by(
    authority: Authority, directory: Path, leaf: Leaf = BY_HOST, mode: TlsMode = TlsMode.REQUIRE
) -> AsyncIterator[tuple[ServiceTls, Path]]:
    """What a worker shows on this machine, and the file of the CA."""
    files = authority.files(directory, leaf)
    meter = NoOpMeterProvider().get_meter("test")
    async with (
        TaskRunner() as tasks,
        open_tls(TlsConfig(files.cert, files.key, files.ca, mode=mode.value), None, SystemClock(), meter, tasks) as tls,
    ):
        assert tls is not None
        yield tls, files.ca


async def test_a_worker_is_asked_by_tls_with_a_ticket_for_that_address(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    running, door = Running(), Door()
    running.commit(5)
    async with (
        shown_by(Authority(), tmp_path) as (tls, ca),
        asked(running, monkeypatch, door=door, tls=tls, ca_file=ca) as ask,
    ):
        assert await ask("by-user", "get", "ann") == {"user": "ann", "n": 5}
    assert all(at.startswith("https://127.0.0.1:") for _, at, _ in door.shown)


async def test_a_worker_of_a_certificate_for_the_kind_is_known_by_that_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    running, door = Running(), Door()
    running.commit(5)
    async with (
        shown_by(Authority(), tmp_path, BY_KIND) as (tls, ca),
        asked(running, monkeypatch, door=door, tls=tls, ca_file=ca) as ask,
    ):
        assert await ask("by-user", "get", "ann") == {"user": "ann", "n": 5}
    assert all(at.startswith("tls://127.0.0.1:") for _, at, _ in door.shown)


@pytest.mark.parametrize("name", ["connect", "broker"])
async def test_the_name_that_is_asked_for_is_not_what_the_worker_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    """One that has a certificate of the cluster for something else, and says that it is a worker of streams."""
    running, door = Running(), Door()
    monkeypatch.setattr(ServiceTls, "names", lambda *_: True)
    async with (
        shown_by(Authority(), tmp_path, leaf_of(name, ["127.0.0.1"], "headrace")) as (tls, ca),
        asked(running, monkeypatch, door=door, tls=tls, ca_file=ca, timeout_ms=200) as ask,
    ):
        with pytest.raises(NetworkFailed):
            await ask("by-user", "get", "ann")
    assert (running.reads, door.shown) == (0, [])


def test_what_the_settings_of_a_worker_say() -> None:
    files = {f"query_tls_{name}": Path(name) for name in ("cert", "key", "ca")}
    given = TlsConfig(Path("cert"), Path("key"), Path("ca"))
    assert StreamsConfig(**files).query_tls == given
    told: dict[str, Any] = {name: str(file) for name, file in files.items()}  # as workers get their settings
    assert StreamsConfig(**told).query_tls == given
    assert StreamsConfig(**files, query_tls_mode="allow").query_tls == replace(given, mode="allow")
    assert not StreamsConfig().query_tls.on
    with pytest.raises(InvalidConfig, match="query_tls_mode"):
        StreamsConfig(query_tls_mode="maybe")


@pytest.mark.parametrize(
    ("mode", "told", "plain"),
    [(TlsMode.ALLOW, "127", True), (TlsMode.PREFER, "tls", True), (TlsMode.REQUIRE, "tls", False)],
)
async def test_what_others_are_told_while_a_cluster_gets_tls(
    tmp_path: Path, mode: TlsMode, told: str, plain: bool
) -> None:
    running, door = Running(), Door()
    authority = Authority()
    async with (
        shown_by(authority, tmp_path, BY_KIND, mode) as (tls, _),
        open_queries(running.queries, Endpoint("127.0.0.1", 0), None, door.let_in, tls) as at,
    ):
        assert str(at).startswith(told)
        by_tls = Security(pem=Pem(authority.ca.certificate_pem), server_name=lambda _: "streams.headrace")
        for security, answered in ((PLAIN, plain), (by_tls, True)):
            async with open_channel(str(at.endpoint), security) as channel:
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await StreamsQueryStub(channel).DescribeStores(pb.DescribeStoresRequest(), timeout=20)
            assert isinstance(error_from_rpc(refused.value), Unauthenticated) is answered
    assert {at for _, at, _ in door.shown} == {str(at)}, "it is what tickets are for"


async def test_a_worker_with_a_certificate_of_somebody_else_gets_no_question(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    running, door = Running(), Door()
    other = Authority("another CA").files(tmp_path / "other").ca
    async with (
        shown_by(Authority(), tmp_path / "own") as (tls, _),
        asked(running, monkeypatch, door=door, tls=tls, ca_file=other, timeout_ms=200) as ask,
    ):
        with pytest.raises(NetworkFailed):
            await ask("by-user", "get", "ann")
    assert (running.reads, door.shown) == (0, [])


async def test_other_cas_in_the_file_count_while_a_program_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    running = Running()
    running.commit(5)
    authority, file = Authority(), tmp_path / "ca.pem"
    file.write_bytes(Authority("the one of before").ca.certificate_pem)
    written = iter([b"", authority.ca.certificate_pem])
    monkeypatch.setattr(stores, "time", SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: change()))

    def change() -> None:
        file.write_bytes(next(written, authority.ca.certificate_pem))

    async with (
        shown_by(authority, tmp_path / "worker", BY_KIND) as (tls, _),
        asked(running, monkeypatch, tls=tls, ca_file=file) as ask,
    ):
        assert await ask("by-user", "get", "ann") == {"user": "ann", "n": 5}


async def test_a_worker_that_speaks_tls_is_never_asked_in_plain_text(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(stores, "bootstrap_addresses", lambda servers: SimpleNamespace(ca=None))
    running, door = Running(), Door()
    async with (
        shown_by(Authority(), tmp_path) as (tls, _),
        asked(running, monkeypatch, door=door, tls=tls) as ask,
    ):
        with pytest.raises(InvalidConfig, match="ca_file="):
            await ask("by-user", "get", "ann")
    assert (running.reads, door.shown) == (0, [])
