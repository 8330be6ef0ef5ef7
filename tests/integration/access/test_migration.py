"""
An open cluster becomes a closed one while clients write and read: no error, and nothing that was acknowledged is lost.

Clients get keys one at a time, as programs do that are started again; those that are left are named, and it is not
closed before. Then keys and a password are changed beneath who runs. ``MIGRATION_LONG`` changes the node token, too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from tests.integration.access.programs import WAIT_S, Program, Reader, Writer, check_each_once_in_order

from headrace import AdminClient, Consumer, Producer, access
from headrace.errors import Conflict, Unauthenticated
from headrace_cli.local import LocalCluster
from headrace_cli.local.processes import wait_until
from headrace_common.runtime.token_file import new_token, read_tokens

pytestmark = pytest.mark.integration

SHORT = timedelta(seconds=2)
"""How far back is looked before it is closed, instead of a day."""


@pytest.fixture(scope="module")
def cluster(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    del home
    directory = tmp_path_factory.mktemp("migration") / "data"
    with LocalCluster(directory, brokers=3, closed=False) as made:
        with AdminClient(made.bootstrap_servers) as admin:
            admin.create_topic("orders", partitions=3, replication_factor=3)
        yield made


def write_key(file: Path, key: str) -> dict[str, str]:
    partial = file.with_suffix(".partial")
    partial.write_text(f"{key}\n")
    partial.chmod(0o600)
    os.replace(partial, file)
    return {"api_key_file": str(file)}


def test_it_is_closed_under_load(cluster: LocalCluster, tmp_path: Path) -> None:
    with (
        Writer(cluster, "alice") as alice,
        Writer(cluster, "bob") as bob,
        Reader(cluster, "carol") as carol,
    ):
        clients: list[Program] = [alice, bob, carol]
        for one in clients:
            one.works()
        with AdminClient(cluster.bootstrap_servers) as anybody:  # while it is open, anybody makes the administrator
            anybody.alter_access([access.Put(access.bind("User:boss", "superuser"))])
            boss_key = anybody.create_key("User:boss").key.reveal()
        with AdminClient(cluster.bootstrap_servers, **write_key(tmp_path / "boss", boss_key)) as boss:
            keys = _move(boss, clients, tmp_path)
            for one in clients:
                one.works()
            with pytest.raises(Unauthenticated), Producer(cluster.bootstrap_servers) as stranger:
                stranger.send("orders", b"stranger").result(WAIT_S)
            assert boss.observed_access().uses, "rights that are used are seen when it is closed, too"
            for one in clients:  # the second key, then the first one dies
                second = boss.create_key(f"User:{one.name}")
                write_key(tmp_path / one.name, second.key.reveal())
                one.works()
                boss.delete_keys([keys[one.name]])
                one.works()
            _change_password(boss, alice)
            if "MIGRATION_LONG" in os.environ:
                _change_node_token(cluster, clients)
    assert [one.errors for one in clients] == [[], [], []]
    acknowledged = {*alice.done, *bob.done}
    assert len(acknowledged) == len(alice.done) + len(bob.done) > 100
    with Consumer(
        "orders",
        bootstrap_servers=cluster.bootstrap_servers,
        auto_offset_reset="earliest",
        api_key_file=str(tmp_path / "carol"),
    ) as reader:
        check_each_once_in_order([(r.partition, r.value) for r in reader.read_to_end()], [alice, bob])


def _move(boss: AdminClient, clients: list[Program], directory: Path) -> dict[str, str]:
    """From open to closed; the ids of the keys that clients have then."""
    boss.alter_access(mode="permissive")
    for one in clients:
        one.works()
    assert wait_until(lambda: _strangers(boss) == {"127.0.0.1"}, WAIT_S)
    with pytest.raises(Conflict, match=r"a caller without a credential from 127\.0\.0\.1"):
        boss.alter_access(mode="closed", within=timedelta(minutes=5))
    keys = {}
    for one in clients:
        made = boss.create_key(f"User:{one.name}")
        keys[one.name] = made.description.id
        one.restart(**write_key(directory / one.name, made.key.reveal()))
    # Each has a key and no right: the report says so, and what allows it.
    named = {f"User:{one.name}" for one in clients}
    assert wait_until(lambda: named <= {r.principal for r in boss.observed_access().refusals}, WAIT_S)
    with pytest.raises(Conflict, match="User:alice"):
        boss.alter_access(mode="closed", within=timedelta(minutes=5), accept_loss_of=["User:ANONYMOUS"])
    boss.alter_access(
        [
            access.Put(access.bind("User:alice", "producer", "orders")),
            access.Put(access.bind("User:bob", "producer", "orders")),
            access.Put(access.allow("User:carol", ["read"], "topic", "orders")),
            access.Put(access.allow("User:carol", ["read"], "group", "shop")),
        ]
    )
    assert wait_until(lambda: _closes(boss), WAIT_S)
    return keys


def _strangers(boss: AdminClient) -> set[str | None]:
    return {one.host for one in boss.observed_access().strangers}


def _closes(boss: AdminClient) -> bool:
    """When nobody has come without a key for so long."""
    try:
        boss.alter_access(mode="closed", within=SHORT)
    except Conflict:
        return False
    return True


def _change_password(boss: AdminClient, writer: Program) -> None:
    """A program with a password gets another one: the old one counts until it is started again."""
    first, second = "a first long password", "a second long password"
    boss.create_user(writer.name, first)
    writer.restart(username=writer.name, password=first)
    boss.change_password(writer.name, second, grace=timedelta(minutes=5))
    writer.works()
    writer.restart(username=writer.name, password=second)


def _change_node_token(cluster: LocalCluster, clients: list[Program]) -> None:
    """As docs/security.md says: the new one beside the old, in front of it, and alone."""
    file = cluster.directory.path / "node-token"
    [old, *_] = [token.decode() for token in read_tokens(file)]
    new = new_token()
    for tokens in ([old, new], [new, old], [new]):
        file.write_text("".join(f"{token}\n" for token in tokens))
        time.sleep(12)  # nodes look every 10 s
        for one in clients:
            one.works()
