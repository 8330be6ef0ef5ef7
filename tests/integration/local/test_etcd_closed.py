"""Nobody but controllers reaches the etcd of a local cluster, and one of before, which anybody reached, goes on."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import ssl
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from aetcd import rpc
from libs.common.tests.kit.ports import free_port, give_back
from tests.integration.local.conftest import MakeCluster

from headrace_cli.local import LocalCluster, StartFailed
from headrace_cli.local.certificate_files import EtcdFiles
from headrace_cli.local.etcd import etcd_serves, find_etcd
from headrace_cli.local.plan import ClusterOptions
from headrace_cli.local.processes import ProcessId, wait_until
from headrace_cli.local.state import ClusterState, DataDir, Phase
from headrace_common.core.ids import Endpoint
from headrace_common.rpc.credentials import Pem
from headrace_controller.adapters.etcd_channels import open_channel, read_pem

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("fakes")]

KEY, VALUE = b"/headrace/headrace/topics/orders", b"precious"
EVERYTHING = json.dumps({"key": "AA==", "range_end": "AA=="})


def asked_by_a_page(address: str, path: str, context: ssl.SSLContext | None = None) -> int | None:
    """The status that a web page of elsewhere gets; None: nothing at all."""
    at = Endpoint.parse(address)
    if context is None:
        connection = http.client.HTTPConnection(at.host, at.port, timeout=5)
    else:
        connection = http.client.HTTPSConnection(at.host, at.port, context=context, timeout=5)
    headers = {"Origin": "https://attacker.example", "Content-Type": "text/plain"}
    try:
        connection.request("POST", path, EVERYTHING, headers)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def unverified() -> ssl.SSLContext:
    """Of an attacker, who minds no certificate and has none."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def tls_of(data: Path) -> Pem:
    files = EtcdFiles(data / "certificates")
    tls = read_pem(files.ca, files.controller, files.key(files.controller))
    assert tls is not None
    return tls


def put(address: str) -> None:
    async def ask() -> None:
        async with open_channel(address) as channel:
            await rpc.KVStub(channel).Put(rpc.PutRequest(key=KEY, value=VALUE), timeout=10)

    asyncio.run(ask())


def get(address: str, tls: Pem | None) -> list[bytes]:
    async def ask() -> list[bytes]:
        async with open_channel(address, tls) as channel:
            return [kv.value for kv in (await rpc.KVStub(channel).Range(rpc.RangeRequest(key=KEY), timeout=10)).kvs]

    return asyncio.run(ask())


@pytest.mark.parametrize("path", ["/v3/kv/range", "/v3/kv/deleterange", "/v3/maintenance/snapshot"])
def test_a_web_page_gets_nothing_from_etcd(make_cluster: MakeCluster, path: str) -> None:
    cluster = make_cluster(brokers=1)
    cluster.start()
    etcd = cluster.process("etcd-1")
    assert asked_by_a_page(etcd.grpc, path) in (None, 400)  # plain text on a port with TLS
    assert asked_by_a_page(etcd.grpc, path, unverified()) is None
    assert asked_by_a_page(etcd.metrics, path) in (None, 404)
    # Whoever has a certificate finds no JSON either: pages come through programs that have one.
    files = EtcdFiles(cluster.directory.path / "certificates")
    known = ssl.create_default_context(cafile=files.ca)
    known.load_cert_chain(files.controller, files.key(files.controller))
    assert asked_by_a_page(etcd.grpc, path, known) == 404


def test_etcd_answers_programs_with_a_certificate_of_its_own_ca_alone(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    cluster = make_cluster(brokers=1)
    cluster.start()
    address = cluster.process("etcd-1").grpc
    mine = tls_of(cluster.directory.path)
    assert get(address, mine) == []
    other = LocalCluster(tmp_path / "other", brokers=1, closed=False)
    with other:
        strange = tls_of(other.directory.path)
    for tls in (None, Pem(mine.ca), Pem(mine.ca, strange.chain, strange.key)):
        with pytest.raises(grpc.aio.AioRpcError):
            get(address, tls)


def test_an_etcd_that_listens_elsewhere_is_known_by_that_address(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(brokers=1, hosts={"etcd-1": "127.0.0.2"})
    cluster.start()
    address = cluster.process("etcd-1").grpc
    assert address.startswith("127.0.0.2:")
    assert get(address, tls_of(cluster.directory.path)) == []


# --- data of before ------------------------------------------------------------------------------------------


@contextmanager
def plain_etcds(data: Path, ports: Mapping[str, int], members: int) -> Iterator[list[str]]:
    """Members as they were started before: in plain text; their client addresses."""
    names = [f"etcd-{n}" for n in range(1, members + 1)]
    peers = {name: f"http://127.0.0.1:{ports[f'{name}.peer']}" for name in names}
    clients = {name: f"127.0.0.1:{ports[name]}" for name in names}
    (data / "logs").mkdir(parents=True, exist_ok=True)
    running = []
    for name in names:
        argv = [
            *(find_etcd(None), "--name", name, "--data-dir", str(data / name)),
            *("--listen-client-urls", f"http://{clients[name]}", "--advertise-client-urls", f"http://{clients[name]}"),
            *("--listen-peer-urls", peers[name], "--initial-advertise-peer-urls", peers[name]),
            *("--initial-cluster", ",".join(f"{n}={url}" for n, url in peers.items())),
        ]
        with (data / "logs" / f"{name}.log").open("ab") as log:
            running.append(subprocess.Popen(argv, stdout=log, stderr=log))
    try:
        assert wait_until(lambda: all(etcd_serves(client) for client in clients.values()), 30, 0.05)
        yield list(clients.values())
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(20)


def left_by_a_version_without_tls(data: Path, members: int) -> dict[str, int]:
    """A data directory whose etcd has ``KEY``; the ports that were used."""
    slots = [slot for n in range(1, members + 1) for slot in (f"etcd-{n}", f"etcd-{n}.peer")]
    ports = {slot: free_port() for slot in slots}
    with plain_etcds(data, ports, members) as clients:
        put(clients[0])
    for port in ports.values():
        give_back(port)
    nobody = ProcessId(2**22 + 1, 1)
    state = ClusterState(nobody, Phase.STOPPED, ClusterOptions(etcd_members=members), ports)
    directory = DataDir.at(data)
    directory.write(state)
    written = json.loads(directory.state_file.read_text())
    del written["plain_peers_named"]
    directory.state_file.write_text(json.dumps(written))
    return ports


def peer_urls(cluster: LocalCluster, name: str) -> set[str]:
    """Where this member believes that members are."""

    async def ask() -> set[str]:
        async with open_channel(cluster.process(name).grpc, tls_of(cluster.directory.path)) as channel:
            answer = await rpc.ClusterStub(channel).MemberList(rpc.MemberListRequest(linearizable=False), timeout=10)
            return {url for member in answer.members for url in member.peerURLs}

    return asyncio.run(ask())


def tell_new_address(client: str, ordinal: int, url: str) -> None:
    """What a move does, of which the rest did not happen."""

    async def ask() -> None:
        async with open_channel(client) as channel:
            stub = rpc.ClusterStub(channel)
            answer = await stub.MemberList(rpc.MemberListRequest(linearizable=True), timeout=10)
            (member,) = (m for m in answer.members if m.name == f"etcd-{ordinal}")
            await stub.MemberUpdate(rpc.MemberUpdateRequest(ID=member.ID, peerURLs=[url]), timeout=10)

    asyncio.run(ask())


def test_a_directory_of_before_goes_on_with_its_data(make_cluster: MakeCluster, tmp_path: Path) -> None:
    left_by_a_version_without_tls(tmp_path / "data", 1)
    cluster = make_cluster(brokers=1)
    for _ in range(2):
        cluster.start()
        assert get(cluster.process("etcd-1").grpc, tls_of(tmp_path / "data")) == [VALUE]
        cluster.stop()


@pytest.mark.parametrize("told", [(), (2,), (1, 2)])
def test_a_quorum_of_before_goes_on_also_after_a_move_that_was_cut(
    make_cluster: MakeCluster, tmp_path: Path, told: Sequence[int]
) -> None:
    data = tmp_path / "data"
    ports = left_by_a_version_without_tls(data, 3)
    if told:
        # A first start that fails at its port keeps what it chose, and that is what members may have been told.
        port = ports["etcd-1.peer"]
        with (
            socket.create_server(("127.0.0.1", port)),
            pytest.raises(StartFailed, match=f"etcd-1 by port {port} in plain text"),
        ):
            make_cluster(brokers=1, etcd_members=3).start()
        state = DataDir.at(data).read()
        assert state is not None
        with plain_etcds(data, ports, 3) as clients:
            for ordinal in told:
                tell_new_address(clients[2], ordinal, f"https://127.0.0.1:{state.ports[f'etcd-{ordinal}.peer']}")
    cluster = make_cluster(brokers=1, etcd_members=3, restart_delay_ms=0)
    cluster.start()
    for name in ("etcd-1", "etcd-2", "etcd-3"):
        assert get(cluster.process(name).grpc, tls_of(data)) == [VALUE]
        urls = peer_urls(cluster, name)
        assert len(urls) == 3
        assert all(url.startswith("https://") for url in urls)
    assert not any(slot.endswith(".plain-peer") for slot in cluster.state.ports)
    cluster.kill("etcd-3")
    cluster.wait_ready()
    cluster.stop()
    cluster.start()
    assert get(cluster.process("etcd-2").grpc, tls_of(data)) == [VALUE]
