"""
A cluster of real services with TLS on all listeners: it works, who has no business there is told why, and certificates
are changed beneath it under load, and their CA, and that of etcd. ``TLS_LONG=1``: ``certificate_seconds`` too.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import shutil
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from aetcd import rpc
from tests.integration.running_with import running_with
from typer.testing import CliRunner

from headrace import AdminClient, Consumer, Producer
from headrace.errors import ClusterUnreachable, HeadraceError, NetworkFailed, TlsFailed, UnknownOutcome
from headrace.finding import DATA_DIR, ClusterAddress, local_cluster
from headrace.securing import security_of
from headrace.testing import TestCluster
from headrace_cli.app import app
from headrace_cli.local import LocalCluster
from headrace_cli.local.certificate_files import EtcdFiles, NodeFiles
from headrace_cli.local.plan import CERTIFICATES, node_files
from headrace_cli.local.rotation import Rotation
from headrace_common.core.errors import ClusterAuthorizationFailed
from headrace_common.core.ids import Endpoint
from headrace_common.rpc.channels import Security, open_sync_channel
from headrace_common.rpc.credentials import Pem
from headrace_common.rpc.node_gate import NODE_KEY
from headrace_common.rpc.status import error_from_rpc
from headrace_common.runtime.certificates import Leaf, make_ca, make_pair, read_pair, write_pair, write_private
from headrace_common.runtime.tls_watch import LOOK_EVERY_MS
from headrace_controller.adapters.etcd_channels import open_channel, read_pem
from headrace_proto.v1 import broker_pb2, cluster_pb2, controller_pb2
from headrace_proto.v1.broker_pb2_grpc import BrokerStub
from headrace_proto.v1.controller_pb2_grpc import ControllerStub

pytestmark = pytest.mark.integration

LONG = os.environ.get("TLS_LONG") == "1"
SHOWN_S = 4 * LOOK_EVERY_MS / 1_000
"""Within which all processes have looked at their files."""
ETCD_LOOK_MS = 10_000.0 if LONG else 1_000.0
"""How often controllers look at those of etcd."""
TAKEN = "new certificates for etcd are in use"
MEMBERS = ("etcd-1", "etcd-2", "etcd-3")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    looks = {"headrace_controller.adapters.etcd_certificates:LOOK_EVERY_MS": ETCD_LOOK_MS}
    made = LocalCluster(
        tmp_path_factory.mktemp("tls") / DATA_DIR,
        brokers=3,
        etcd_members=3,
        tls=True,
        restart_delay_ms=0,
        launchers={"controller-1": running_with(looks)},
    )
    with made:
        with AdminClient(made.address) as admin:
            admin.create_topic("orders", partitions=3, replication_factor=3)
        yield made


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is never answered is told so soon."""
    monkeypatch.setattr("headrace._core.phases.UNREACHABLE_MS", 300)


@pytest.fixture
def files(cluster: LocalCluster) -> NodeFiles:
    return node_files(cluster.directory.path)


# --- it works ------------------------------------------------------------------------------------------------


def test_all_clients_speak_tls(cluster: LocalCluster) -> None:
    with Producer(cluster.address, transactional_id="tls") as producer:
        producer.begin_transaction()
        for n in range(100):
            producer.send("orders", b"%d" % n)
        producer.commit_transaction()
    settings: dict[str, Any] = {"ssl_ca_location": cluster.address.ca, "security_protocol": "SSL"}
    with Consumer(
        "orders",
        bootstrap_servers=cluster.bootstrap_servers,
        group_id="tls",
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        **settings,
    ) as consumer:
        read: list[bytes | None] = []
        end = time.monotonic() + 30
        while len(read) < 100 and time.monotonic() < end:
            read += [record.value for record in consumer.poll(timeout_ms=1_000)]
        consumer.commit()
    assert sorted(int(value or b"-1") for value in read) == list(range(100))
    with AdminClient(cluster.address) as admin:
        assert "tls" in [group.group_id for group in admin.list_groups().groups]


def test_a_test_cluster_makes_clients_that_speak_tls(cluster: LocalCluster) -> None:
    tested = TestCluster(cluster)
    topic = tested.unique_topic("tested")
    with tested.producer() as producer:
        producer.send(topic, b"one").result(30)
    with tested.consumer(topic) as consumer:
        assert [record.value for record in consumer.poll(30_000)] == [b"one"]
    with tested.log_watch() as watch:
        assert watch.bounds([(topic, 0)])[topic, 0].end == 1
    with tested.range_reader([(topic, 0, 0, 1)]) as reader:
        assert sum(map(len, reader)) == 1


def test_clients_are_told_what_certificates_name(cluster: LocalCluster) -> None:
    with open_sync_channel(cluster.address[0], security_of(cluster.address), own_connection=True) as channel:
        broker = BrokerStub(channel)
        nodes = broker.Metadata(broker_pb2.MetadataRequest(), timeout=20).nodes
        asked = broker_pb2.FindCoordinatorRequest(type=broker_pb2.GROUP, keys=["tls"])
        [found] = broker.FindCoordinator(asked, timeout=20).coordinators
    named = {(node.role, node.grpc.server_name) for node in nodes}
    assert {(cluster_pb2.BROKER, "broker.headrace"), (cluster_pb2.ADMIN, "admin.headrace")} <= named
    assert found.endpoint.server_name == "coordinator.headrace"


def test_rest_speaks_tls(cluster: LocalCluster) -> None:
    assert cluster.admin_url.startswith("https://")
    context = ssl.create_default_context(cafile=cluster.address.ca)
    asked = urllib.request.Request(f"{cluster.admin_url}/v1/topics/orders", headers=cluster.authorization)
    with urllib.request.urlopen(asked, timeout=20, context=context) as answer:
        assert b"orders" in answer.read()


def test_clients_of_the_directory_find_the_ca(cluster: LocalCluster) -> None:
    found = local_cluster(cluster.directory.path)
    assert found is not None
    with AdminClient(found) as admin:
        assert "orders" in [topic.name for topic in admin.list_topics()]


def test_only_health_and_metrics_speak_plain_text(cluster: LocalCluster) -> None:
    context = ssl.create_default_context(cafile=cluster.address.ca)
    for process in cluster.processes:
        if process.role == "etcd":
            continue
        at = Endpoint.parse(process.grpc)
        plain = socket.create_connection((at.host, at.port), timeout=10)
        with context.wrap_socket(plain, server_hostname=f"{process.role}.headrace") as secure:
            assert secure.version() in ("TLSv1.2", "TLSv1.3"), process.name


# --- who has no business there -------------------------------------------------------------------------------


def refused(address: Any) -> str:
    with pytest.raises(ClusterUnreachable) as raised, AdminClient(address) as admin:
        admin.list_topics()
    return str(raised.value)


@pytest.mark.usefixtures("soon")
def test_a_client_without_tls_is_told_what_to_set(cluster: LocalCluster) -> None:
    said = refused(cluster.bootstrap_servers)
    assert "as one does that speaks TLS" in said
    assert "ssl_ca_location or HEADRACE_CA" in said


@pytest.mark.usefixtures("soon")
def test_a_client_that_trusts_another_ca(cluster: LocalCluster, tmp_path: Path) -> None:
    other = tmp_path / "other.pem"
    write_private(other, make_ca("another", datetime.now(UTC)).certificate_pem)
    said = refused(ClusterAddress(tuple(cluster.bootstrap_servers), ca=str(other)))
    assert "leads to no CA that is trusted here" in said


def ask_controller(cluster: LocalCluster, files: NodeFiles, cert: Path | None, says: str) -> HeadraceError:
    """What a controller says to a stranger that wants to create a topic."""
    shown = () if cert is None else (cert.read_bytes(), files.key(cert).read_bytes())
    security = Security(lambda _: ((NODE_KEY, says),), Pem(files.ca.read_bytes(), *shown))
    at = cluster.process("controller").grpc
    with open_sync_channel(at, security, own_connection=True) as channel, pytest.raises(grpc.RpcError) as raised:
        ControllerStub(channel).CreateTopics(controller_pb2.CreateTopicsRequest(), timeout=20)
    return error_from_rpc(raised.value)


def test_a_peer_is_held_to_its_certificate(cluster: LocalCluster, files: NodeFiles, tmp_path: Path) -> None:
    nobody = ask_controller(cluster, files, None, "admin-1")
    assert isinstance(nobody, TlsFailed)
    assert "shown no certificate of a CA that it trusts" in str(nobody)
    broker = ask_controller(cluster, files, files.of("broker"), "admin-1")
    assert isinstance(broker, ClusterAuthorizationFailed)
    assert "of another node than it says" in str(broker)
    honest = ask_controller(cluster, files, files.of("broker"), "broker-1")
    assert "CreateTopics is for admin nodes, and broker-1 is none" in str(honest)
    now = datetime.now(UTC)
    ca = read_pair(files.ca, files.key(files.ca))
    assert ca is not None
    for name, signed_by, life in (("foreign", make_ca("another", now), 1.0), ("expired", ca, -0.5)):
        cert = tmp_path / f"{name}.pem"
        leaf = Leaf("admin", uri="spiffe://headrace/admin")
        write_pair(cert, files.key(cert), make_pair(signed_by, leaf, now, timedelta(days=life)))
        error = ask_controller(cluster, files, cert, "admin-1")
        assert isinstance(error, TlsFailed), (name, error)


# --- other certificates under load ---------------------------------------------------------------------------


class Load:
    """Writes in order to a topic of its own, and makes topics, until it is to end."""

    def __init__(self, cluster: LocalCluster, topic: str = "load") -> None:
        self._cluster = cluster
        self._topic = topic
        self._ends = threading.Event()
        self.acked: list[int] = []
        self.failed: list[Exception] = []
        """Of what was written, and of topics where that is known."""
        self.cut: list[Exception] = []
        """Of topics that were being made when a connection was cut. Nobody knows, so it is looked before it goes on."""
        self.topics: list[str] = []
        self._threads = [threading.Thread(target=target) for target in (self._write, self._make)]

    def __enter__(self) -> Load:
        with AdminClient(self._cluster.address) as admin:
            brokers = sum(process.role == "broker" for process in self._cluster.processes)
            admin.create_topic(self._topic, partitions=1, replication_factor=brokers)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()

    def _write(self) -> None:
        with Producer(self._cluster.address, linger_ms=1) as producer:
            n = 0
            while not self._ends.is_set():
                sent = [(n + k, producer.send(self._topic, b"%d" % (n + k), partition=0)) for k in range(20)]
                n += 20
                for number, delivery in sent:
                    try:
                        delivery.result(60)
                        self.acked.append(number)
                    except HeadraceError as error:
                        self.failed.append(error)

    def _make(self) -> None:
        with AdminClient(self._cluster.address) as admin:
            n, again = 0, False
            while not self._ends.wait(0.2):
                n += not again
                try:
                    admin.create_topic(f"{self._topic}-{n}", partitions=1, if_not_exists=again)
                except HeadraceError as error:
                    again = isinstance(error, UnknownOutcome)
                    (self.cut if again else self.failed).append(error)
                else:
                    again = False
                    self.topics.append(f"{self._topic}-{n}")

    def check(self) -> None:
        """Once it has ended: all that was acknowledged is there, once and in order."""
        assert self.failed == []
        with Consumer(self._topic, bootstrap_servers=self._cluster.address, auto_offset_reset="earliest") as consumer:
            read = [int(record.value or b"-1") for record in consumer.read_to_end()]
        assert read == self.acked, "nothing lost, doubled or out of order"
        with AdminClient(self._cluster.address) as admin:
            assert {topic.name for topic in admin.list_topics()} >= set(self.topics)


def test_certificates_and_their_ca_are_swapped_under_load(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(cluster.directory.path.parent)
    with Load(cluster) as load:
        wait_for(lambda: len(load.acked) > 100)
        before, old = len(load.acked), certificates()
        assert {process.name for process in cluster.processes if process.role != "etcd"} == old.keys()
        headrace("tls", "rotate")
        pairs = certificates()
        assert {one["issuer"]["fingerprint"] for one in (*old.values(), *pairs.values())} == {ca_of(old)}
        headrace("tls", "rotate", "--ca")
        new = certificates()
        for name, bundle in new.items():
            shown = {at[name]["certificate"]["fingerprint"] for at in (old, pairs, new)}
            assert len(shown) == 3, name
            assert [ca["fingerprint"] for ca in bundle["trusted"]] == [bundle["issuer"]["fingerprint"]] != [ca_of(old)]
        at = len(load.acked)
        wait_for(lambda: len(load.acked) > at + 500)
    assert len(load.acked) > before
    load.check()
    assert len(load.cut) < 5, "at the last step, and no more"
    assert all(isinstance(error, NetworkFailed) for error in load.cut), load.cut
    assert [process.restarts for process in cluster.processes if process.role != "etcd"] == [0] * 6


def ca_of(shown: dict[str, Any]) -> str:
    """Of the first broker."""
    fingerprint: str = shown["broker-1"]["issuer"]["fingerprint"]
    return fingerprint


def headrace(*argv: str) -> str:
    """What the command says."""
    result = CliRunner().invoke(app, list(argv))
    assert result.exit_code == 0, result.output
    return result.output


def certificates() -> dict[str, Any]:
    """What each node shows and trusts, by name."""
    nodes = json.loads(headrace("tls", "list", "-o", "json"))["nodes"]
    assert all(len(node["bundles"]) == 1 for node in nodes)
    return {node["node"]: node["bundles"][0] for node in nodes}


def wait_for(reached: Callable[[], bool]) -> None:
    end = time.monotonic() + SHOWN_S
    while not reached():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.05)


# --- another CA of etcd ---------------------------------------------------------------------------------------


def pem_of(trusted: EtcdFiles, shown: EtcdFiles) -> Pem:
    """Of who trusts the one CA, and shows a certificate of the other."""
    pem = read_pem(trusted.ca, shown.controller, shown.key(shown.controller))
    assert pem is not None
    return pem


def of_all_members(cluster: LocalCluster, pem: Pem) -> list[str] | None:
    """Who votes, as each member says when it has answered what takes a quorum. None: all of them refuse."""

    async def ask(name: str) -> str:
        async with open_channel(cluster.process(name).grpc, pem) as channel:
            await rpc.KVStub(channel).Range(rpc.RangeRequest(key=b"x"), timeout=10)
            listed = await rpc.ClusterStub(channel).MemberList(rpc.MemberListRequest(linearizable=True), timeout=10)
            return ",".join(sorted(one.name for one in listed.members if not one.isLearner))

    async def ask_all() -> list[str | BaseException]:
        return await asyncio.gather(*map(ask, MEMBERS), return_exceptions=True)

    answers = asyncio.run(ask_all())
    told = [one for one in answers if isinstance(one, str)]
    if told:
        assert len(told) == len(answers), answers
        return told
    assert all(isinstance(one, grpc.aio.AioRpcError) and one.code() is grpc.StatusCode.UNAVAILABLE for one in answers)
    return None


def meets(cluster: LocalCluster, name: str, trusted: EtcdFiles, shown: Path) -> bool:
    """Whether who shows that is answered where members meet."""
    context = ssl.create_default_context(cafile=trusted.ca)
    context.load_cert_chain(shown, trusted.key(shown))
    port = cluster.state.ports[f"{name}.peer"]
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=10)
    try:
        connection.request("GET", "/members")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def restart_members(cluster: LocalCluster, load: Load) -> None:
    """One by one, as a rollout does; topics are made and records written while each is away, and then."""
    for name in MEMBERS:
        made, written = len(load.topics), len(load.acked)
        cluster.kill(name, hard=False)
        cluster.wait_ready()
        wait_for(lambda made=made, written=written: len(load.topics) > made + 1 and len(load.acked) > written)


def test_etcd_gets_another_ca_under_load(cluster: LocalCluster, tmp_path: Path) -> None:
    """As docs/security.md has it, of three members: one at a time is away, and nobody hears of it."""
    there = cluster.directory.path / CERTIFICATES
    etcd, steps = EtcdFiles(there), Rotation(NodeFiles(there), datetime.now(UTC))
    old = EtcdFiles(Path(shutil.copytree(there, tmp_path / "old")))
    log = cluster.directory.logs / "controller-1.log"

    def stepped(step: Callable[[], object]) -> None:
        """All controllers have taken it."""
        taken = log.read_text().count(TAKEN)
        step()
        wait_for(lambda: log.read_text().count(TAKEN) > taken)

    voting = ["etcd-1,etcd-2,etcd-3"] * 3
    assert of_all_members(cluster, pem_of(old, old)) == voting
    with Load(cluster, "etcd") as load:
        wait_for(lambda: len(load.topics) > 1)
        stepped(steps.add)
        restart_members(cluster, load)
        stepped(steps.sign)
        stepped(steps.drop)
        restart_members(cluster, load)
        steps.end()
    load.check()
    print(f"{len(load.acked)} records, {len(load.topics)} topics; of {len(load.cut)} it was looked: {load.cut}")
    assert of_all_members(cluster, pem_of(etcd, etcd)) == voting
    assert of_all_members(cluster, pem_of(etcd, old)) is None, "certificates of the old CA are refused"
    assert of_all_members(cluster, pem_of(old, etcd)) is None, "and nobody shows one"
    for name in MEMBERS:
        assert meets(cluster, name, etcd, etcd.member)
        assert not meets(cluster, name, etcd, old.member)


# --- certificates that end while the cluster runs ------------------------------------------------------------

LIFE_S = 30.0
"""Of a certificate; made anew every 10 s."""


@pytest.mark.skipif(not LONG, reason="it takes two minutes")
@pytest.mark.timeout(400)
def test_certificates_of_a_short_life_are_swapped_while_the_cluster_runs(tmp_path: Path) -> None:
    """What is there after several lives, etcd and its controller too, connects anew; and all goes on meanwhile."""
    made = LocalCluster(tmp_path / "data", brokers=1, tls=True, certificate_seconds=LIFE_S)
    with made as cluster:
        with Load(cluster) as load:
            end = time.monotonic() + 2 * LIFE_S
            for name in ("etcd", "broker", "coordinator"):  # what starts again connects to the others anew
                time.sleep(max(0.0, end - time.monotonic()))
                cluster.kill(name)
                cluster.wait_ready()
                end = time.monotonic() + LIFE_S / 3
            at, topics, failed = len(load.acked), len(load.topics), len(load.failed + load.cut)
            wait_for(lambda: len(load.acked) > at + 500 and len(load.topics) > topics + 3)
            assert len(load.failed + load.cut) == failed, "those of before could be for want of etcd"
        with Consumer("load", bootstrap_servers=cluster.address, auto_offset_reset="earliest") as consumer:
            read = [int(record.value or b"-1") for record in consumer.read_to_end()]
        assert set(load.acked) <= set(read)
        assert [p.restarts for p in cluster.processes if p.role in ("admin", "controller")] == [0, 0]
