"""Clients of a broker that is closed: who has a key works, who has none or a dead one is told at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from libs.common.tests.kit.issuer import SigningIssuer
from libs.sdk.tests.kit.doors import Door, closed_broker, closed_coordinator
from services.broker.tests.kit.cluster import topic_id_of

from headrace import aio
from headrace._credentials import Granted
from headrace._transport.grpc import GrpcTransport
from headrace._transport.port import Coordinator
from headrace.aio._client import ClusterClient, Leader
from headrace.errors import CredentialsRevoked, HeadraceError, NetworkFailed, Unauthenticated, UnsupportedVersion
from headrace.finding import ClusterAddress
from headrace.local_keys import write_local_key
from headrace_common.core.ids import NO_NODE, Endpoint, NodeId
from headrace_common.core.secret import Secret
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1 import coordinator_pb2 as group_pb
from headrace_proto.v1 import transaction_pb2

ONE = NodeId(1)
LONG_MS = 60_000
"""Nobody waits for so long: what is refused is told at once."""


@pytest.fixture
def door() -> Door:
    return Door()


@pytest.fixture
async def at(door: Door) -> AsyncIterator[Endpoint]:
    async with closed_broker(door, {"t": 1, "other": 1}) as endpoint:
        yield endpoint


@pytest.fixture
async def coordinator(door: Door) -> AsyncIterator[Coordinator]:
    async with closed_coordinator(door) as endpoint:
        yield Coordinator(ONE, str(endpoint))


@pytest.fixture
def key_file(door: Door, tmp_path: Path) -> Path:
    file = tmp_path / "key"
    file.write_text(door.make_key())
    return file


@pytest.fixture
async def transport(at: Endpoint, key_file: Path) -> AsyncIterator[GrpcTransport]:
    client = GrpcTransport(ClusterAddress((str(at),), api_key_file=str(key_file)))
    yield client
    await client.close()


def producer(at: Endpoint, **settings: Any) -> aio.Producer:
    return aio.Producer(str(at), delivery_timeout_ms=2 * LONG_MS, max_block_ms=LONG_MS, **settings)


async def write(client: aio.Producer, topic: str, value: bytes) -> None:
    await (await client.send(topic, value))


async def told(call: Any, kind: type[HeadraceError] = Unauthenticated) -> str:
    async with asyncio.timeout(10):
        with pytest.raises(kind) as error:
            await call
    assert not error.value.retriable
    return str(error.value)


async def heard(call: Callable[[], Awaitable[Any]]) -> Any:
    """What a call on a stream comes to: gRPC loses a refusal that a write meets, so such a stream is opened again."""
    async with asyncio.timeout(10):
        while True:
            try:
                return await call()
            except NetworkFailed as error:
                if "the connection broke" not in str(error):
                    raise


# --- nothing to show ----------------------------------------------------------------------------------------------


async def test_who_shows_nothing_is_told_at_once_by_every_client(at: Endpoint) -> None:
    async with producer(at) as client:
        assert "HEADRACE_API_KEY" in await told(write(client, "t", b"1"))
    consumer = aio.Consumer(bootstrap_servers=str(at), default_api_timeout_ms=LONG_MS)
    await told(consumer.subscribe(["t"]))
    await consumer.close()
    member = aio.Consumer("t", bootstrap_servers=str(at), group_id="g", default_api_timeout_ms=LONG_MS)
    await told(member.poll(LONG_MS))
    await member.close()
    async with aio.AdminClient(str(at)) as admin:
        await told(admin.list_topics())
    async with producer(at, transactional_id="x") as client:
        await told(client.init_transactions())


async def test_a_wrong_key_is_told_at_once(at: Endpoint, door: Door) -> None:
    strange = Door().make_key()
    async with producer(at, api_key=strange) as client:
        assert "no API key" in await told(write(client, "t", b"1"))


async def test_a_key_that_is_over_is_told_as_such(at: Endpoint, door: Door) -> None:
    key = door.make_key()
    async with producer(at, api_key=key) as client:
        await write(client, "t", b"1")
        door.revoke(key)
        async with asyncio.timeout(10):
            with pytest.raises(Unauthenticated):
                await write(client, "t", b"2")
        await told(write(client, "t", b"3"))


def forget_leader(cluster: ClusterClient) -> None:
    view = cluster._topics["t"]
    cluster._topics["t"] = view._replace(leaders=(Leader(NO_NODE, 5),))


async def test_records_that_wait_for_a_leader_are_told_when_nobody_tells_it(at: Endpoint, door: Door) -> None:
    key = door.make_key()
    async with producer(at, api_key=key) as client:
        await write(client, "t", b"1")
        forget_leader(client._engine.cluster)
        door.revoke(key)
        await told(write(client, "t", b"2"))


async def test_a_reader_that_waits_for_a_leader_is_told_when_nobody_tells_it(at: Endpoint, door: Door) -> None:
    key = door.make_key()
    reader = aio.Consumer(bootstrap_servers=str(at), api_key=key, default_api_timeout_ms=LONG_MS)
    await reader._reading.partitions_of("t")
    forget_leader(reader._reading._cluster)
    door.revoke(key)
    await reader.subscribe(["t"])
    await told(reader.poll(LONG_MS))
    await reader.close()


# --- one that is known --------------------------------------------------------------------------------------------


async def test_who_shows_a_key_writes_and_reads(at: Endpoint, door: Door, key_file: Path) -> None:
    for shown in ({"api_key": door.make_key()}, {"api_key_file": str(key_file)}):
        async with producer(at, **shown) as client:
            await write(client, "t", b"1")
        consumer = aio.Consumer("t", bootstrap_servers=str(at), auto_offset_reset="earliest", **shown)
        assert [record.value for record in await consumer.poll(LONG_MS)][:1] == [b"1"]
        await consumer.close()


async def test_a_program_of_the_same_user_needs_nothing(at: Endpoint, door: Door, tmp_path: Path) -> None:
    write_local_key(tmp_path / "config/headrace/local", "c", [str(at)], Secret(door.make_key()))
    async with producer(at) as client:
        await write(client, "t", b"1")


async def test_siblings_show_the_same(transport: GrpcTransport) -> None:
    twin = transport.sibling()
    await twin.metadata(pb.MetadataRequest())
    await twin.close()


async def test_who_has_a_token_in_the_file_goes_on_with_the_next_one(at: Endpoint, door: Door, tmp_path: Path) -> None:
    """As a pod has it: the file changes; and the issuer takes back the key of the token before, which ends streams."""
    file, values = tmp_path / "token", []
    shown = {"api_key_file": str(file)}
    issuers = SigningIssuer(algorithms=["RS256"]), SigningIssuer(algorithms=["ES256"])
    file.write_text(issuers[0].token(now_ms=door.clock.now_ms()))
    door.trust(issuers[0].known)
    reader = aio.Consumer("t", bootstrap_servers=str(at), auto_offset_reset="earliest", **shown)
    async with producer(at, **shown) as client:
        await write(client, "t", b"1")
        values += [record.value for record in await reader.poll(LONG_MS)]
        file.write_text(issuers[1].token(algorithm="ES256", now_ms=door.clock.now_ms()))
        door.trust(issuers[1].known)
        await write(client, "t", b"2")
        values += [record.value for record in await reader.poll(LONG_MS)]
    await reader.close()
    assert values == [b"1", b"2"]


async def test_a_token_of_nobody_who_is_trusted_is_told_at_once(at: Endpoint, door: Door) -> None:
    token = SigningIssuer().token(now_ms=door.clock.now_ms())
    async with producer(at, api_key=token) as client:
        assert "none of this cluster's" in await told(write(client, "t", b"1"))


# --- another key --------------------------------------------------------------------------------------------------


async def change_key(door: Door, key_file: Path) -> None:
    """Streams that were begun with the key of before end."""
    old = key_file.read_text()
    key_file.write_text(door.make_key())
    door.revoke(old)


END = pb.ListOffsetsRequest()
END.partitions.add(topic_id=topic_id_of("t"), partition=0, timestamp_ms=-1)
Call = Callable[[GrpcTransport], Any]
CALLS: dict[str, Call] = {
    "metadata": lambda client: client.metadata(pb.MetadataRequest()),
    "list_offsets": lambda client: client.list_offsets(ONE, END),
    "init_producer_id": lambda client: client.init_producer_id(pb.InitProducerIdRequest()),
}


@pytest.mark.parametrize("call", CALLS)
async def test_a_call_is_tried_once_more_with_the_key_that_is_there_by_now(
    call: str, transport: GrpcTransport, at: Endpoint, door: Door, tmp_path: Path
) -> None:
    await transport.metadata(pb.MetadataRequest())
    local = GrpcTransport(ClusterAddress((str(at),)))
    await told(local.metadata(pb.MetadataRequest()))
    write_local_key(tmp_path / "config/headrace/local", "c", [str(at)], Secret(door.make_key()))
    await local.metadata(pb.MetadataRequest())  # refused, and then not
    local._nodes = transport._nodes
    old = dict(local._credentials.metadata(str(at)))["authorization"]
    write_local_key(tmp_path / "config/headrace/local", "c", [str(at)], Secret(door.make_key()))
    door.revoke(str(old).removeprefix("Bearer "))
    await CALLS[call](local)
    await local.close()


async def test_records_under_way_are_sent_again_with_another_key(at: Endpoint, door: Door, key_file: Path) -> None:
    async with producer(at, api_key_file=str(key_file), linger_ms=0) as client:
        for number in range(20):
            sent = [await client.send("t", b"%d" % (10 * number + n)) for n in range(10)]
            await change_key(door, key_file)
            for each in sent:
                await each
    reader = aio.Consumer("t", bootstrap_servers=str(at), auto_offset_reset="earliest", api_key_file=str(key_file))
    values: list[bytes] = []
    while len(values) < 200:
        values += [record.value or b"" for record in await reader.poll(LONG_MS)]
    await reader.close()
    assert values == [b"%d" % number for number in range(200)], "in order, none twice"


async def test_a_reader_goes_on_with_another_key(at: Endpoint, door: Door, key_file: Path) -> None:
    shown = {"api_key_file": str(key_file)}
    reader = aio.Consumer("t", bootstrap_servers=str(at), auto_offset_reset="earliest", **shown)
    async with producer(at, **shown) as client:
        for value in (b"1", b"2", b"3"):
            await write(client, "t", value)
            assert [record.value for record in await reader.poll(LONG_MS)] == [value]
            await change_key(door, key_file)
    await reader.close()


async def test_a_reader_whose_key_is_taken_back_is_told(at: Endpoint, door: Door) -> None:
    key = door.make_key()
    reader = aio.Consumer("t", bootstrap_servers=str(at), auto_offset_reset="earliest", api_key=key)
    async with producer(at, api_key=door.make_key()) as client:
        await write(client, "t", b"1")
        assert len(await reader.poll(LONG_MS)) == 1
        door.revoke(key)
        await told(reader.poll(LONG_MS))
        await told(reader.poll(LONG_MS))
    await reader.close()


async def test_a_reader_whose_user_may_not_log_in_any_more_is_told(
    at: Endpoint, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    key: str | None = door.make_key()

    async def log_in(*_: Any) -> Granted:
        if key is None:
            raise CredentialsRevoked("User:alice is blocked")
        return Granted(Secret(key), 3_600_000)

    monkeypatch.setattr(GrpcTransport, "_log_in", log_in)
    who: dict[str, Any] = {"username": "alice", "password": "a quiet river bends"}
    reader = aio.Consumer("t", bootstrap_servers=str(at), auto_offset_reset="earliest", **who)
    async with producer(at, api_key=door.make_key()) as client:
        await write(client, "t", b"1")
        assert len(await reader.poll(LONG_MS)) == 1
        shown, key = key, None
        door.revoke(shown or "")
        assert "blocked" in await told(reader.poll(LONG_MS))
        key = door.make_key()
        await write(client, "t", b"2")
        async with asyncio.timeout(10):
            while not (records := await reader.poll(LONG_MS)):
                pass
        assert [record.value for record in records] == [b"2"]
    await reader.close()


async def test_a_stream_of_membership_tells_why_it_ended(coordinator: Coordinator, door: Door, key_file: Path) -> None:
    address = ClusterAddress(("127.0.0.1:1",), api_key=Secret(Door().make_key()))
    strange = GrpcTransport(address)
    await told(strange.membership(coordinator).receive())
    await strange.close()
    known = GrpcTransport(replace(address, api_key=None, api_key_file=str(key_file)))
    with pytest.raises(UnsupportedVersion):  # it is let in, and nobody is at home
        await known.membership(coordinator).receive()
    await known.close()


@pytest.mark.parametrize("kind", ["membership", "end", "group_call", "transaction_call"])
async def test_coordinators_are_asked_again_with_another_key(
    kind: str, coordinator: Coordinator, door: Door, key_file: Path
) -> None:
    old, new = key_file.read_text(), door.make_key()
    door.revoke(old)
    client = GrpcTransport(ClusterAddress(("127.0.0.1:1",), api_key_file=str(key_file)))
    calls = {
        "membership": lambda: client.membership(coordinator).receive(),
        "end": lambda: client.end_call(transaction_pb2.EndTxnRequest())(coordinator, LONG_MS),
        "group_call": lambda: client.group_call(lambda stub: stub.FetchOffsets, group_pb.FetchOffsetsRequest())(
            coordinator, LONG_MS
        ),
        "transaction_call": lambda: client.transaction_call(lambda stub: stub.EndTxn, transaction_pb2.EndTxnRequest())(
            coordinator, LONG_MS
        ),
    }
    await told(heard(calls[kind]))
    streams = kind in ("membership", "end")
    under_way = asyncio.ensure_future(heard(calls[kind]))
    read = client._credentials._look_again
    looks = []

    def look_again() -> None:  # the file changes between the refusal and the look at it
        if not looks:
            key_file.write_text(new)
        looks.append(1)
        read()

    client._credentials._look_again = look_again  # type: ignore[method-assign]
    with pytest.raises(NetworkFailed if streams else UnsupportedVersion) as error:
        await under_way
    if streams:
        assert "there is no API key" in str(error.value)
        with pytest.raises((UnsupportedVersion, NetworkFailed), match="does not offer"):
            await heard(calls[kind])
    await client.close()


async def test_a_cut_stream_says_that_its_key_was_deleted(at: Endpoint, door: Door) -> None:
    key = door.make_key()
    transport = GrpcTransport(ClusterAddress((str(at),), api_key=Secret(key)))
    answer = await transport.metadata(pb.MetadataRequest(topics=["t"]))
    request = pb.FetchRequest(max_wait_ms=LONG_MS, min_bytes=1, max_bytes=1)
    request.partitions.add(topic_id=answer.topics[0].topic_id, partition=0, fetch_offset=0, max_bytes=1)
    waiting = asyncio.ensure_future(transport.fetch_stream(ONE).send(request))
    await asyncio.wait({waiting}, timeout=0.2)
    door.revoke(key)
    await told(waiting, CredentialsRevoked)
    await transport.close()
