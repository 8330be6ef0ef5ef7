"""
Users with passwords on a real closed cluster: they are made, write and read, are given another password, and are taken
away, whereupon what they have open ends.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from libs.common.tests.kit.issuer import SigningIssuer
from tests.integration.access.issuing import trusting
from typer.testing import CliRunner

from headrace import AdminClient, Consumer, Producer, access
from headrace._credentials import Granted
from headrace._transport.grpc import GrpcTransport
from headrace._transport.grpc_coordinators import CoordinatorCalls
from headrace.errors import (
    ClusterAuthorizationFailed,
    CredentialsRevoked,
    HeadraceError,
    TopicAuthorizationFailed,
    Unauthenticated,
)
from headrace.local_keys import logins_directory
from headrace_cli.app import app
from headrace_cli.local import LocalCluster
from headrace_cli.local.processes import wait_until

pytestmark = pytest.mark.integration

GOOD = "a quiet river bends"
OTHER = "an old stone bridge"


@pytest.fixture(scope="module")
def idp() -> SigningIssuer:
    return SigningIssuer()


@pytest.fixture(scope="module")
def cluster(home: Path, idp: SigningIssuer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("passwords")
    with trusting(idp, directory), LocalCluster(directory / "data", brokers=2, closed=True, restart=False) as made:
        with AdminClient(made.bootstrap_servers) as admin:
            admin.create_topic("orders", partitions=2)
            admin.create_user("alice", GOOD)
            admin.alter_access(
                [
                    access.Put(access.bind("User:alice", "developer", "orders")),
                    access.Put(access.allow("User:alice", ["READ"], "GROUP", "*")),
                ]
            )
        yield made


@pytest.fixture
def admin(cluster: LocalCluster) -> Iterator[AdminClient]:
    with AdminClient(cluster.bootstrap_servers) as made:
        yield made


def refusal(call: Callable[[], object]) -> HeadraceError:
    with pytest.raises(HeadraceError) as caught:
        call()
    return caught.value


def who(cluster: LocalCluster, password: str, user: str = "alice") -> str:
    with AdminClient(cluster.bootstrap_servers, username=user, password=password) as client:
        return client.who_am_i().principal


def test_who_has_the_password_writes_and_reads_at_all_brokers(cluster: LocalCluster, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(GOOD + "\n")
    kafkas = {
        "bootstrap.servers": ",".join(cluster.bootstrap_servers),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "alice",
        "sasl.password": GOOD,
    }
    with Producer(kafkas) as producer:
        sent = [producer.send("orders", b"%d" % n, partition=n % 2) for n in range(10)]
        producer.flush()
        assert all(one.result() for one in sent)
    with Consumer(
        "orders",
        bootstrap_servers=cluster.bootstrap_servers,
        group_id="g",
        auto_offset_reset="earliest",
        username="alice",
        password_file=str(file),
    ) as consumer:
        values = [record.value for record in consumer.read_to_end()]
    assert sorted(values) == [b"%d" % n for n in range(10)]


def test_who_writes_and_reads_for_longer_than_a_session_lasts_hears_nothing_of_it(
    cluster: LocalCluster, admin: AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member of a group, and a producer with transactions: no stream of theirs is ended by a node for its time."""
    life_s, cut = 4.0, list[HeadraceError]()

    async def log_in(*_: Any) -> Granted:
        lifetime = timedelta(seconds=life_s)
        made = await asyncio.to_thread(admin.create_key, "User:alice", lifetime=lifetime)
        return Granted(made.key, int(life_s * 1_000 / 3))

    def watched(self: CoordinatorCalls) -> Callable[[HeadraceError], bool]:
        is_final = refusals(self)

        def look(error: HeadraceError) -> bool:
            if isinstance(error, Unauthenticated):
                cut.append(error)
            return is_final(error)

        return look

    refusals = CoordinatorCalls._refusals
    monkeypatch.setattr(GrpcTransport, "_log_in", log_in)
    monkeypatch.setattr(GrpcTransport, "_refusals", watched)
    shown = {"bootstrap_servers": cluster.bootstrap_servers, "username": "alice", "password": GOOD}
    sent, read = 0, list[bytes | None]()
    with (
        Producer(transactional_id="orders-writer", **shown) as producer,
        Consumer(
            "orders", group_id="long", auto_offset_reset="latest", isolation_level="read_committed", **shown
        ) as consumer,
    ):
        while not consumer.assignment():
            consumer.poll(100)
        [consumer.position(tp) for tp in consumer.assignment()]
        until = time.monotonic() + life_s + 0.5
        while time.monotonic() < until:
            with producer.transaction():
                producer.send("orders", b"%d" % sent, partition=0)
            sent += 1
            read += [record.value for record in consumer.poll(200)]
            consumer.commit()
        while len(read) < sent:
            read += [record.value for record in consumer.poll(20_000)]
    assert read == [b"%d" % number for number in range(sent)]
    assert not cut


def test_a_wrong_password_and_a_stranger_are_told_the_same(cluster: LocalCluster) -> None:
    said = [refusal(lambda: who(cluster, OTHER)), refusal(lambda: who(cluster, GOOD, "mallory"))]
    assert {type(one) for one in said} == {Unauthenticated}
    assert len({str(one) for one in said}) == 1


def test_a_session_changes_nobodys_rights_and_a_login_does(cluster: LocalCluster, admin: AdminClient) -> None:
    admin.create_user("root", GOOD)
    admin.alter_access([access.Put(access.bind("User:root", "superuser"))])
    change = [access.Put(access.allow("User:root", ["READ"], "TOPIC", "x"))]
    with AdminClient(cluster.bootstrap_servers, username="root", password=GOOD) as root:
        assert "headrace login" in str(refusal(root.create_key))
        assert isinstance(refusal(lambda: root.alter_access(change)), ClusterAuthorizationFailed)
        key = root.log_in("root", GOOD).key
    with AdminClient(cluster.bootstrap_servers, api_key=key) as root:
        root.alter_access(change)


def test_the_command_makes_a_user_who_logs_in_and_out(cluster: LocalCluster, tmp_path: Path) -> None:
    def run(*words: str, given: str = "") -> str:
        done = CliRunner().invoke(app, [*words, "--bootstrap", cluster.bootstrap_servers[0]], input=given)
        assert done.exit_code == 0, done.output
        return done.output

    file = tmp_path / "password"
    file.write_text(GOOD)
    run("user", "create", "carol", "--password-file", str(file))
    assert "carol" in run("user", "list")
    said = run("login", "--user", "carol", "--password-file", "-", given=f"{GOOD}\n")
    assert GOOD not in said
    (login,) = logins_directory(os.environ).glob("*.toml")
    assert login.stat().st_mode & 0o777 == 0o600
    assert "User:carol" in run("whoami")
    run("user", "passwd", "carol", "--password-file", "-", given=f"{OTHER}\n")
    with AdminClient(cluster.bootstrap_servers[0]) as cut:
        assert isinstance(refusal(cut.who_am_i), CredentialsRevoked), "the login went with the password"
    run("login", "--user", "carol", "--password-file", "-", given=f"{OTHER}\n")
    run("logout")
    assert not login.exists()
    assert "User:admin" in run("whoami")
    run("user", "remove", "carol")


def test_another_password_counts_at_once_and_with_a_grace_the_old_one_too(
    cluster: LocalCluster, admin: AdminClient
) -> None:
    admin.create_user("bob", GOOD)
    admin.change_password("bob", OTHER, grace=timedelta(minutes=5))
    assert {who(cluster, password, "bob") for password in (GOOD, OTHER)} == {"User:bob"}
    admin.change_password("bob", GOOD)
    assert who(cluster, GOOD, "bob") == "User:bob"
    assert isinstance(refusal(lambda: who(cluster, OTHER, "bob")), Unauthenticated)


def writes(broker: str, topic: str, **shown: Any) -> bool:
    """Whether a record is taken from who shows that; False: it may not, as far as is known there."""
    try:
        with Producer(broker, **shown) as producer:
            producer.send(topic, b"1").result(30)
    except TopicAuthorizationFailed:
        return False
    return True


def reads(broker: str, topic: str, group: str, **shown: Any) -> int:
    """How many records a member of a new group reads."""
    settings = {"bootstrap_servers": broker, "group_id": group, "auto_offset_reset": "earliest", **shown}
    with Consumer(topic, **settings) as consumer:
        return len(list(consumer.read_to_end()))


def test_while_no_controller_lives_users_log_in_and_tokens_that_nobody_has_seen_are_taken(
    cluster: LocalCluster, admin: AdminClient, idp: SigningIssuer
) -> None:
    topic, now_ms = "orders-alone", int(time.time() * 1_000)
    principal = f"Oidc:{idp.issuer.alias}/nina"
    admin.create_topic(topic, partitions=1, replication_factor=2)
    admin.create_user("nora", GOOD)
    admin.alter_access([access.Put(access.bind(who, "developer", topic)) for who in ("User:nora", principal)])
    for broker in cluster.bootstrap_servers:  # each has heard of it
        assert wait_until(lambda broker=broker: writes(broker, topic, username="nora", password=GOOD), 20)
    assert reads(cluster.bootstrap_servers[0], topic, topic), "the first group makes the topic of all groups"
    begun = time.monotonic()
    cluster.kill("controller-1")
    try:
        for number, broker in enumerate(cluster.bootstrap_servers):
            token = idp.token(now_ms=now_ms, sub="nina", jti=str(number))
            shown: dict[str, Any]
            for shown in ({"username": "nora", "password": GOOD}, {"api_key": token}):
                assert writes(broker, topic, **shown)
                assert reads(broker, topic, f"{topic}-{number}", **shown)
            with pytest.raises(Unauthenticated):
                writes(broker, topic, username="nora", password=OTHER)
    finally:
        cluster.restart("controller-1")
        cluster.wait_ready()
    print(f"written and read {time.monotonic() - begun:.1f} s after the only controller died")


def test_who_is_taken_away_is_cut_off_and_one_of_the_same_name_has_nothing(
    cluster: LocalCluster, admin: AdminClient
) -> None:
    producer = Producer(cluster.bootstrap_servers, username="alice", password=GOOD, delivery_timeout_ms=40_000)
    producer.send("orders", b"before").result()
    assert "--cascade" in str(refusal(lambda: admin.delete_user("alice")))
    admin.delete_user("alice", cascade=True)
    begun = time.monotonic()
    error = refusal(lambda: [producer.send("orders", b"after").result() for _ in range(1_000)])
    assert isinstance(error, Unauthenticated)
    assert time.monotonic() - begun < 20, "it is not tried again and again"
    producer.close()
    admin.create_user("alice", GOOD)
    with AdminClient(cluster.bootstrap_servers, username="alice", password=GOOD) as again:
        assert again.who_am_i().principal == "User:alice"
        assert not again.list_topics()


def test_of_topics_that_one_may_not_describe_a_group_tells_nothing(cluster: LocalCluster, admin: AdminClient) -> None:
    """Not by its lag and not by its members, who hold partitions of both."""
    admin.create_user("dora", GOOD)
    admin.alter_access(
        [
            access.Put(access.bind("User:dora", "developer", "orders")),
            access.Put(access.allow("User:dora", ["READ"], "GROUP", "both")),
        ]
    )
    admin.create_topic("hidden", partitions=1)
    admin.create_topic("orders-shown", partitions=1)
    with Producer(cluster.bootstrap_servers) as producer:
        for topic in ("hidden", "orders-shown"):
            producer.send(topic, b"1").result(30)
    settings = {"group_id": "both", "auto_offset_reset": "earliest"}
    with Consumer("hidden", "orders-shown", bootstrap_servers=cluster.bootstrap_servers, **settings) as consumer:
        read = 0
        while read < 2:
            read += len(consumer.poll(20_000))
        consumer.commit()
        assert {one.topic for one in admin.group_lag("both")} == {"hidden", "orders-shown"}
        with AdminClient(cluster.bootstrap_servers, username="dora", password=GOOD) as dora:
            told = [dora.group_lag("both"), dora.describe_group("both")]
    for one in told:
        assert "orders-shown" in str(one)
        assert "hidden" not in str(one), one
