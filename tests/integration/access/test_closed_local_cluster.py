"""
``headrace up --closed``: programs and commands of the same user just work; who shows nothing is refused by every
service; the key of a start dies with it, and clients that are refused find the next one.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import grpc
import pytest
from tests.integration.access import strangers
from tests.integration.access.forging import Forger

from headrace import AdminClient, Consumer, Producer, access
from headrace.errors import ErrorCode, HeadraceError, TopicAuthorizationFailed, Unauthenticated
from headrace.local_keys import local_keys_directory, read_local_keys
from headrace_cli.local import LocalCluster
from headrace_cli.local.processes import wait_until
from headrace_common.core.access.api_keys import ID_BYTES, SECRET_BYTES, format_key
from headrace_common.rpc.channels import Security, open_sync_channel
from headrace_common.rpc.status import error_from_rpc
from headrace_proto.v1 import broker_pb2, controller_pb2, coordinator_pb2
from headrace_proto.v1.admin_pb2_grpc import AdminStub
from headrace_proto.v1.broker_pb2_grpc import BrokerStub
from headrace_proto.v1.coordinator_pb2_grpc import CoordinatorStub

pytestmark = pytest.mark.integration

Ask = Callable[[grpc.Channel], object]
ASKED: dict[str, Ask] = {
    "broker": lambda channel: BrokerStub(channel).Metadata(broker_pb2.MetadataRequest(), timeout=10),
    "coordinator": lambda channel: CoordinatorStub(channel).FetchOffsets(
        coordinator_pb2.FetchOffsetsRequest(group_id="g"), timeout=10
    ),
    "admin": lambda channel: AdminStub(channel).ListTopics(controller_pb2.ListTopicsRequest(limit=10), timeout=10),
}
"""Something that anybody may ask who is known."""


@pytest.fixture(scope="module")
def public() -> Iterator[Path]:
    """A directory that every user of the machine may enter."""
    with TemporaryDirectory(prefix="headrace-") as directory:
        os.chmod(directory, 0o755)
        yield Path(directory)


@pytest.fixture(scope="module")
def home(public: Path) -> Iterator[Path]:
    directory = public / "home"
    directory.mkdir(mode=0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(directory))
        yield directory


@pytest.fixture(scope="module")
def cluster(home: Path, public: Path) -> Iterator[LocalCluster]:
    del home
    with LocalCluster(public / "data", brokers=1, closed=True) as made:
        with AdminClient(made.bootstrap_servers) as admin:
            admin.create_topic("orders")
        yield made


def shown(cluster: LocalCluster, key: str | None) -> Security:
    return Security() if key is None else Security(lambda target: (("authorization", f"Bearer {key}"),))


def asked(cluster: LocalCluster, role: str, key: str | None) -> HeadraceError | None:
    """What the service says to who shows ``key``; None: it answered."""
    with open_sync_channel(cluster.process(role).grpc, shown(cluster, key)) as channel:
        try:
            ASKED[role](channel)
        except grpc.RpcError as error:
            return error_from_rpc(error)
    return None


def key_of(cluster: LocalCluster) -> str:
    return read_local_keys(local_keys_directory(os.environ))[cluster.bootstrap_servers[0]].reveal()


def headrace(cluster: LocalCluster, *argv: str, home: Path, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "headrace_cli", "-b", ",".join(cluster.bootstrap_servers), *argv],
        env={**os.environ, "XDG_CONFIG_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_programs_of_the_same_user_just_work(cluster: LocalCluster) -> None:
    with Producer(cluster.bootstrap_servers) as producer:
        producer.send("orders", b"1").result(30)
    with Consumer("orders", bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest") as reader:
        assert [record.value for record in reader.poll(30_000)] == [b"1"]
    with Consumer(
        "orders", bootstrap_servers=cluster.bootstrap_servers, group_id="g", auto_offset_reset="earliest"
    ) as member:
        assert [record.value for record in member.poll(30_000)] == [b"1"]
        member.commit()
    with Producer(cluster.bootstrap_servers, transactional_id="x") as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("orders", b"2")


def test_commands_of_the_same_user_just_work(cluster: LocalCluster, home: Path) -> None:
    assert "orders" in headrace(cluster, "topic", "list", home=home)
    assert "orders" in headrace(cluster, "debug", "metadata", home=home)
    assert "verdict: healthy" in status(cluster, home)


def status(cluster: LocalCluster, home: Path) -> str:
    """It finds the cluster by its directory."""
    return subprocess.run(
        [sys.executable, "-m", "headrace_cli", "status", "--data-dir", str(cluster.directory.path)],
        env={**os.environ, "XDG_CONFIG_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    ).stdout


def test_a_start_shows_its_own_key_whatever_key_is_in_the_environment(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del home
    monkeypatch.setenv("HEADRACE_API_KEY", format_key(bytes(ID_BYTES), bytes(SECRET_BYTES)))
    settings = {"num.partitions": "3"}  # which the cluster keeps, so that a start has to ask it
    with LocalCluster(tmp_path / "data", brokers=1, settings=settings) as made:
        with pytest.raises(Unauthenticated), AdminClient(made.bootstrap_servers) as anybody:
            anybody.list_topics()
        with AdminClient(made.administrator) as admin:
            assert admin.describe_configs()["num.partitions"].value == "3"


def test_another_user_is_told_what_is_missing(cluster: LocalCluster, tmp_path: Path) -> None:
    said = headrace(cluster, "topic", "list", home=tmp_path, code=1)
    assert "this cluster is closed" in said
    assert "HEADRACE_API_KEY" in said
    assert "how the cluster is it does not tell you: this cluster is closed" in status(cluster, tmp_path)
    assert "this cluster is closed" in status(cluster, tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_another_unix_user_gets_nothing_at_any_port_and_opens_no_file(cluster: LocalCluster) -> None:
    keys = local_keys_directory(os.environ)
    paths = strangers.everything_under(cluster.directory.path, keys)
    assert {Path(path).suffix for path in paths} >= {".toml", ".log"}
    found = strangers.ask_as_nobody(cluster, paths)
    strangers.check_refused(found)
    assert len(found["asked"]) >= 8, "internal ports and those of etcd too"
    asked = [one for one in found["asked"].values() if "UNAUTHENTICATED" in one["grpc"].values()]
    assert len(asked) >= 6, "of brokers, coordinators and admins two each"
    assert [one["http"] for one in found["asked"].values()].count(401) == 1, "REST"
    assert not found["opened"]


@pytest.mark.parametrize("role", ASKED)
def test_who_shows_nothing_is_refused_by_each_service(role: str, cluster: LocalCluster) -> None:
    assert asked(cluster, role, key_of(cluster)) is None
    assert isinstance(asked(cluster, role, None), Unauthenticated)


def rest(cluster: LocalCluster, key: str | None) -> int:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(f"{cluster.admin_url}/v1/topics", headers=headers)
        ) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_rest_asks_who_calls(cluster: LocalCluster) -> None:
    assert rest(cluster, key_of(cluster)) == 200
    assert rest(cluster, None) == 401


def test_rights_are_given_by_the_command_and_the_line_of_an_error(
    cluster: LocalCluster, home: Path, tmp_path: Path
) -> None:
    file = tmp_path / "bob.key"
    headrace(cluster, "key", "create", "--owner", "User:bob", "--file", str(file), home=home)
    with Producer(cluster.bootstrap_servers, api_key_file=str(file)) as bob:
        with pytest.raises(TopicAuthorizationFailed, match=r"User:bob may not") as refused:
            bob.send("orders", b"bob").result(30)
        [line] = re.findall(r"headrace (access allow .*)", str(refused.value))
        headrace(cluster, *shlex.split(line), home=home)
        headrace(cluster, "access", "allow", "User:bob", "write", "topic", "orders", home=home)
        assert wait_until(lambda: bob.send("orders", b"bob").exception(30) is None, 10)
        headrace(cluster, "access", "block", "User:bob", home=home)
        assert wait_until(lambda: isinstance(bob.send("orders", b"no").exception(30), Unauthenticated), 10)
    assert "User:admin" in headrace(cluster, "whoami", home=home)


def test_writers_of_one_topic_cannot_write_as_each_other(cluster: LocalCluster) -> None:
    """Every record that the victim was told is there is there, once, and nothing else in its transactions."""
    servers = cluster.bootstrap_servers
    with AdminClient(servers) as admin:
        admin.create_topic("shared", partitions=1)
        for who, id in (("victim", "of-victim"), ("forger", "of-forger")):
            rules = [access.allow(f"User:{who}", ["read", "write"], "topic", "shared")]
            admin.alter_access(
                [access.Put(one) for one in [*rules, access.allow(f"User:{who}", ["write"], "transactional_id", id)]]
            )
        victim, forger = (admin.create_key(f"User:{who}").key.reveal() for who in ("victim", "forger"))
    acknowledged: list[bytes] = []
    with (
        Producer(servers, api_key=victim, linger_ms=0) as plain,
        Producer(servers, api_key=victim, transactional_id="of-victim") as transactional,
        Forger(cluster.process("broker").grpc, forger, "shared", "of-forger") as attack,
    ):
        while attack.rounds < 20 and attack.failure is None:
            values = [b"%d-%d" % (len(acknowledged), n) for n in range(4)]
            for value in values[:2]:
                plain.send("shared", value).result(30)
            with transactional.transaction():
                for value in values[2:]:
                    transactional.send("shared", value).result(30)
            acknowledged += values
    with Consumer(
        "shared", bootstrap_servers=servers, auto_offset_reset="earliest", isolation_level="read_committed"
    ) as reader:
        found: list[bytes] = []
        while len(found) < len(acknowledged) and (records := reader.poll(10_000)):
            found += [record.value for record in records]
        assert found == acknowledged
        assert not [record.value for record in reader.poll(0)]
    assert attack.failure is None
    refusals = {ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_ID_MAPPING}
    assert refusals <= set(attack.answers) <= refusals | {ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH}, (
        "NONE: the victim was faster, and its record has that sequence"
    )


def test_the_key_is_in_no_log_and_dies_with_its_start(cluster: LocalCluster) -> None:
    """The last of this file: it starts the cluster again."""
    old = key_of(cluster)
    for log in cluster.directory.logs.iterdir():
        assert old not in log.read_text(errors="replace"), log.name
    with Producer(cluster.bootstrap_servers) as running:
        running.send("orders", b"3").result(30)
        cluster.stop()
        assert not read_local_keys(local_keys_directory(os.environ))
        cluster.start()
        assert key_of(cluster) != old
        running.send("orders", b"4").result(60)
    assert isinstance(asked(cluster, "broker", old), Unauthenticated)
