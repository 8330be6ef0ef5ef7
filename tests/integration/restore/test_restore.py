"""
The metadata is lost and an older backup restored: nothing that was acknowledged is lost, and everything goes on.

Real etcd, controllers, brokers, coordinators and clients. Between backup and loss: topics are made, grown, set, moved
and deleted; in-sync sets shrink under load; groups commit and transactions end for the first time.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable

import pytest

from headrace import Consumer, Producer, access
from headrace.admin_access_types import NewApiKey
from headrace.admin_types import TopicInfo
from headrace.delivery import Delivery
from headrace.testing import TestCluster
from headrace_common.core.ids import Endpoint
from headrace_controller.adapters.etcd_channels import read_pem
from headrace_controller.adapters.etcd_store import EtcdStore
from headrace_controller.core.store import Delete, Transaction

from .conftest import Restorable, until

pytestmark = pytest.mark.integration
Start = Callable[[int], Restorable]
Sent = dict[tuple[str, int, int], bytes]
"""Value by topic, partition and offset, of all that was acknowledged."""


def acknowledged(deliveries: Iterable[tuple[bytes, Delivery]]) -> Sent:
    found: Sent = {}
    for value, delivery in deliveries:
        where = delivery.result(timeout=120)
        assert (where.topic, where.partition, where.offset) not in found
        found[where.topic, where.partition, where.offset] = value
    return found


def produced(producer: Producer, topic: str, values: Iterable[int]) -> Sent:
    sent = [(b"%s %d" % (topic.encode(), n), producer.send(topic, b"%s %d" % (topic.encode(), n))) for n in values]
    producer.flush(120)
    return acknowledged(sent)


def stored(cluster: TestCluster, topics: list[str], **settings: object) -> Sent:
    """Everything that is to be read of these topics."""
    with cluster.consumer(*topics, auto_offset_reset="earliest", **settings) as consumer:
        ends: dict[object, int] = {}
        until(lambda: bool(consumer.assignment()))
        ends = dict(consumer.end_offsets(consumer.assignment()))
        found: Sent = {}
        last_news = time.monotonic()
        while any(consumer.position(tp) < end for tp, end in ends.items()):
            records = consumer.poll(timeout_ms=2_000, max_records=10_000)
            found |= {(r.topic, r.partition, r.offset): bytes(r.value or b"") for r in records}
            last_news = time.monotonic() if records else last_news
            assert time.monotonic() - last_news < 60, "it cannot be read to its end"
    return found


def read_by(consumer: Consumer, count: int) -> set[bytes]:
    """At least so many of the values that come next."""
    found: set[bytes] = set()
    last_news = time.monotonic()
    while len(found) < count:
        news = {bytes(r.value or b"") for r in consumer.poll(timeout_ms=2_000, max_records=1_000)}
        found |= news
        last_news = time.monotonic() if news else last_news
        assert time.monotonic() - last_news < 90, "it hears nothing any more"
    return found


def check(sent: Sent, found: Sent) -> None:
    """The checker's definitions: lost, moved, or twice there."""
    lost = {where: value for where, value in sent.items() if found.get(where) != value}
    assert not lost, f"{len(lost)} acknowledged records are not where they were, such as {next(iter(lost.items()))}"
    twice = [value for value, count in Counter(found.values()).items() if count > 1]
    assert not twice, f"{len(twice)} values are there twice"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("killed", [True, False])
def test_an_older_backup_loses_nothing(started: Start, killed: bool) -> None:
    restorable = started(4)
    cluster = restorable.cluster
    sent: Sent = {}
    producer = cluster.producer(delivery_timeout_ms=300_000)
    with cluster.admin() as admin:
        admin.create_topic("before", 3, 3)
        admin.create_topic("deleted", 1, 3)
        admin.create_topic("again", 1, 3)
        sent |= produced(producer, "before", range(1_000))
        produced(producer, "again", range(100))
        backup = restorable.back_up()

        admin.create_topic("after", 2, 3, configs={"retention.ms": "777000000"})
        admin.delete_topic("deleted")
        admin.delete_topic("again")
        admin.create_topic("again", 2, 3)
        sent |= produced(producer, "after", range(2_000))
        sent |= produced(producer, "again", range(1_000))
        restorable.local.kill("broker-2")  # in-sync sets shrink
        sent |= produced(producer, "before", range(1_000, 5_000))
        restorable.local.restart("broker-2")
        admin.add_partitions("before", 5)
        place = {r.partition: r.replicas for r in admin.describe_topic("before").partitions}
        targets = {("before", n): [4, *(b for b in place[n] if b != 4)][:3] for n in range(3)}
        admin.alter_reassignments(targets)
        until(lambda: not admin.list_reassignments(), 120)
        sent |= produced(producer, "before", range(5_000, 8_000))
        sent |= produced(producer, "after", range(2_000, 3_000))
    with cluster.consumer("after", group_id="g", auto_offset_reset="earliest") as consumer:
        read = set()
        while len(read) < 500:
            read |= {r.value for r in consumer.poll(timeout_ms=5_000, max_records=100)}
        consumer.commit()
    with cluster.producer(transactional_id="t1") as transactional:
        with transactional.transaction():
            done = [(b"txn %d" % n, transactional.send("after", b"txn %d" % n)) for n in range(10)]
        sent |= acknowledged(done)

    with cluster.admin() as admin:
        for hours in range(1, 400):  # the new etcd's revisions stay below these until the end
            admin.alter_configs({"retention.ms": str(hours * 3_600_000_000)}, topic="before")
        admin.create_topic("late", 1, 3)
    sent |= produced(producer, "late", range(100))  # clients have seen how far the revisions are
    living = cluster.consumer("before", group_id="living", auto_offset_reset="earliest")
    heard = read_by(living, 2_000)
    restorable.lose_metadata(killed=killed)
    meanwhile = [(b"meanwhile %d" % n, producer.send("before", b"meanwhile %d" % n)) for n in range(500)]
    restorable.restore(backup, (1, 2, 3, 4))
    restorable.local.start()
    with cluster.admin() as admin:
        until(lambda: not admin.describe_cluster().offline_partitions, 120)
        assert {t.name for t in admin.list_topics()} == {"after", "again", "before", "deleted", "late"}
        assert len(admin.describe_topic("before").partitions) == 5
        assert admin.describe_configs(topic="after")["retention.ms"].value == "777000000"
    sent |= acknowledged(meanwhile)  # the same producer id goes on: once each
    wanted = {value for (topic, _, _), value in sent.items() if topic == "before"}
    while not wanted <= heard:
        heard |= read_by(living, 1)
    living.close()
    check(sent, stored(cluster, ["before", "after", "again", "late"]))

    rest = {value for (topic, _, _), value in sent.items() if topic == "after"} - read
    with cluster.consumer("after", group_id="g", auto_offset_reset="earliest") as consumer:
        seen: list[bytes] = []
        while len(seen) < len(rest):
            seen += [bytes(r.value or b"") for r in consumer.poll(timeout_ms=10_000, max_records=1_000)]
            assert not read & set(seen), "the group goes on where it was"
        consumer.commit()
    assert set(seen) == rest
    with cluster.producer(transactional_id="t1") as transactional, transactional.transaction():
        transactional.send("again", b"txn again")
    with cluster.admin() as admin:
        admin.create_topic("new", 2, 3)
    sent |= produced(producer, "before", range(8_000, 9_000))
    sent |= produced(producer, "new", range(1_000))
    producer.close()
    check(sent, stored(cluster, ["before", "after", "again", "late", "new"]))


def command(cluster: TestCluster, *argv: str) -> subprocess.CompletedProcess[str]:
    """The ``headrace`` command."""
    bootstrap = ",".join(cluster.bootstrap_servers)
    return subprocess.run(
        [sys.executable, "-m", "headrace_cli", *argv, "--bootstrap", bootstrap],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.timeout(600)
def test_nobody_leads_before_every_named_broker_is_there(started: Start) -> None:
    restorable = started(1)
    cluster = restorable.cluster
    with cluster.admin() as admin, cluster.producer() as producer:
        admin.create_topic("t", 2, 1)
        sent = produced(producer, "t", range(500))
        deleted = admin.create_key("User:eve")
        admin.create_user("carol", "a horse, a battery and 7 staples")
        login = admin.log_in("carol", "a horse, a battery and 7 staples")
        backup = restorable.back_up()
        sent |= produced(producer, "t", range(500, 1_000))
        admin.alter_access([access.Put(access.block("User:eve"))])
        admin.delete_keys([deleted.description.id])
        younger = admin.create_key("User:dave")
    assert "never restored" in command(cluster, "cluster", "restore-status").stderr

    restorable.lose_metadata(killed=False)
    restorable.restore(backup, (1, 2))
    restorable.local.start()
    until(lambda: "start: broker 2" in command(cluster, "cluster", "restore-status").stderr, 90)
    waits = command(cluster, "cluster", "restore-status", "-o", "json")
    assert (waits.returncode, json.loads(waits.stdout)["restore"]["missing_brokers"]) == (7, [2])
    health = command(cluster, "cluster", "health")
    assert (health.returncode, "it waits for broker 2; start it" in health.stdout) == (7, True)
    refused = command(cluster, "topic", "create", "new")
    assert refused.returncode != 0
    assert "brokers 2 have not joined" in refused.stderr
    with cluster.admin() as admin:
        assert all(p.leader is None for p in admin.describe_topic("t").partitions)
        assert admin.list_strays().topics == ()

    restorable.local.stop()  # broker 2 is gone for good: the same backup again, without it
    restorable.restore(backup, (1,), "--replace")
    restorable.local.start()
    until(lambda: command(cluster, "cluster", "restore-status").returncode == 0, 90)
    with cluster.admin() as admin:
        until(lambda: all(p.leader == 1 for p in admin.describe_topic("t").partitions))
        found = admin.describe_restore()
        assert found is not None
        assert (found.finished, found.adopted_topics, found.empty_topics) == (True, 0, 0)
    check(sent, stored(cluster, ["t"]))
    what_was_revoked_is_told(restorable, deleted, younger, login)

    asyncio.run(forget_topic(restorable, "t"))  # what no operator should do: its logs are stray then
    until(lambda: "t" not in [topic.name for topic in topics(cluster)])
    (stray,) = json.loads(command(cluster, "topic", "strays", "-o", "json").stdout)["strays"]
    assert (stray["name"], len(stray["logs"]), sum(log["log_end_offset"] for log in stray["logs"])) == ("t", 2, 1_000)
    adopted = command(cluster, "topic", "adopt", stray["topic_id"], "--name", "found")
    assert "adopted: found, 2 partitions" in adopted.stderr
    check({("found", n, offset): value for (_, n, offset), value in sent.items()}, stored(cluster, ["found"]))


def what_was_revoked_is_told(restorable: Restorable, deleted: NewApiKey, younger: NewApiKey, login: NewApiKey) -> None:
    """By the audit's files, which outlast the metadata; and what is found is made right by what it says."""
    cluster, files = restorable.cluster, str(restorable.directory / "data" / "audit")
    told = command(cluster, "access", "since-backup", files, "-o", "json")
    assert told.returncode == 1, told.stderr
    found = json.loads(told.stdout)
    assert [(one["what"], one["name"]) for one in found["findings"]] == [
        ("was blocked, and is not any more", "User:eve"),
        ("the key was deleted, and counts again", deleted.description.id),
        ("the key was made after the backup, and is gone", younger.description.id),
    ]
    assert found["audit_lacks_events"] is False
    with cluster.admin() as admin:
        ids = {key.id for key in admin.list_keys()}
        assert deleted.description.id in ids
        assert login.description.id not in ids, "whoever had logged in logs in again"
        admin.delete_keys([deleted.description.id])
        made_right = command(cluster, "access", "since-backup", files, "--keep-blocked")
        assert (made_right.returncode, "User:eve is blocked again" in made_right.stderr) == (0, True)
        assert admin.describe_access().blocked == ("User:eve",)


def topics(cluster: TestCluster) -> list[TopicInfo]:
    with cluster.admin() as admin:
        return admin.list_topics()


async def forget_topic(restorable: Restorable, name: str) -> None:
    etcd = Endpoint.parse(restorable.local.process("etcd-1").grpc)
    files = restorable.etcd_files
    tls = read_pem(files.ca, files.controller, files.key(files.controller))
    async with EtcdStore.open([etcd], "/headrace/headrace/", tls=tls) as store:
        await store.commit(Transaction((), (Delete(f"topics/{name}"),)))
