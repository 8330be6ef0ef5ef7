"""Break-glass opens a cluster from which everybody was locked out, for an hour, without controller and credential."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from libs.common.tests.kit.access import ALICE
from services.controller.tests.kit.access import Office, called_by, config, office
from services.controller.tests.kit.client import Client, eventually
from services.controller.tests.kit.dialogue import cell
from services.controller.tests.kit.etcd import EtcdProcess
from services.controller.tests.kit.process import ControllerProcess
from services.controller.tests.kit.programs import run, said

from headrace_common.core.access.api_keys import parse_key, verifier_of
from headrace_common.core.access.changes import Block, Put
from headrace_common.core.access.decisions import Decisions
from headrace_common.core.access.principal import BREAKGLASS
from headrace_common.core.access.resources import Operation, ResourceType
from headrace_common.core.access.rows import Mode
from headrace_common.core.access.state import Caller
from headrace_common.core.errors import Conflict, ErrorCode, HeadraceError, NotFound, Rejected, UnsupportedVersion
from headrace_common.core.features import ACCESS
from headrace_common.rpc.channels import Security
from headrace_common.rpc.node_gate import FORWARDED_KEY, NODE_KEY, TOKEN_KEY
from headrace_common.runtime.entropy import new_api_key
from headrace_controller import breakglass
from headrace_controller.adapters.memory_store import MemoryStore
from headrace_controller.core import records, store
from headrace_controller.core.breakglass import LIFETIME_MS
from headrace_controller.core.records import Cluster
from headrace_controller.core.restore_record import RESTORING_KEY
from headrace_controller.core.store import Transaction
from headrace_controller.engine.keys import WantedKey


@pytest.fixture
async def held() -> AsyncIterator[Office]:
    """A closed cluster with nobody who can change rules."""
    async with office(config(Mode.CLOSED, admin_keys=())) as made:
        yield made


async def act(held: Office, *arguments: str) -> dict[str, Any]:
    """Run the program on the store; the cluster has seen what it did."""
    given = breakglass.parse_arguments(arguments)
    answer = await breakglass.act(given, held.world.store, round(held.world.clock.now_ms()))
    await held.world.until(lambda: held.view.access.generation == answer["generation"])
    return answer


def may(held: Office) -> bool:
    decisions = Decisions(held.view.access)
    return decisions.decide(Caller(BREAKGLASS), Operation.DELETE, ResourceType.TOPIC, "anything")


async def test_its_key_is_a_super_user_s_for_one_hour(held: Office) -> None:
    answer = await act(held)
    id, secret = parse_key(answer["key"])
    key = held.view.keys[id]
    assert (key.owner, key.matches(secret), key.scope) == (BREAKGLASS, True, None)
    assert key.expires_ms == key.created_ms + LIFETIME_MS == round(held.world.clock.now_ms()) + LIFETIME_MS
    assert may(held)
    assert (held.view.mode, answer["mode"]) == (Mode.CLOSED, "closed"), "it opens for one, not for all"
    assert not any(secret in item.value.decode() for item in (await held.world.store.list_all()).items)
    gauges = held.engine.gauges()
    assert (gauges["breakglass"], gauges["access_mode"], gauges["access_vouched_full"]) == (1, Mode.CLOSED, 0)


async def test_it_works_while_no_controller_lives_and_the_next_one_keeps_it(held: Office) -> None:
    await held.engine.stop()
    answer = await breakglass.act(breakglass.parse_arguments([]), held.world.store, 1)
    second = await held.world.active(2)
    view = second.follower.access
    assert parse_key(str(answer["key"])).id in view.keys
    assert view.access.is_super([BREAKGLASS])


async def test_it_can_be_begun_again_and_each_key_counts(held: Office) -> None:
    one, two = await act(held), await act(held)
    assert {parse_key(one["key"]).id, parse_key(two["key"]).id} <= held.view.keys.keys()


async def test_it_helps_though_it_was_blocked() -> None:
    async with office(config(Mode.CLOSED)) as held:
        await act(held)
        await held.alter(Put(Block(BREAKGLASS)), Put(Block(ALICE)))
        assert not may(held)
        await act(held)
        assert may(held)
        assert held.view.access.blocked == {ALICE}


async def test_it_ends_with_its_last_key(held: Office) -> None:
    first = await act(held)
    await held.world.pass_ms(LIFETIME_MS // 2)
    await act(held)
    await held.world.pass_ms(LIFETIME_MS // 2 + 10_000)
    assert may(held)
    await held.world.pass_ms(LIFETIME_MS // 2)
    await held.world.until(lambda: not may(held))
    assert parse_key(first["key"]).id in held.view.keys, "who shows it is told that it is over"
    assert not held.view.access.bindings


async def test_it_ends_with_all_of_it_and_nothing_else(held: Office) -> None:
    before = await held.rows()
    await act(held)
    await act(held)
    other = await held.engine.create_key(WantedKey(owner=ALICE), called_by(BREAKGLASS))
    await act(held, "--end")
    after = await held.rows()
    assert after.keys() == {*before, f"keys/{other.key.id}"}
    assert not may(held)
    assert held.engine.gauges()["breakglass"] == 0
    again = await held.rows()
    await act(held, "--end")
    assert await held.rows() == again, "there is nothing more to end"


async def test_rules_of_a_newer_version_keep_it_from_nothing(held: Office) -> None:
    newer = store.Put(records.access_key("grants/User:x"), b'{"v":9}')
    await held.world.store.commit(Transaction((), (newer,)))
    given = breakglass.parse_arguments([])
    answer = await breakglass.act(given, held.world.store, 1)
    (fault,) = answer["not_readable_by_this_version"]  # type: ignore[misc]  # a tuple
    assert "grants/User:x" in fault
    await breakglass.act(breakglass.parse_arguments(["--end"]), held.world.store, 1)
    rows = await held.rows()
    assert not any(str(BREAKGLASS) in name or name.startswith("keys/") for name in rows)
    await held.world.store.commit(Transaction((), (store.Put(records.access_key("state"), b'{"v":9}'),)))
    with pytest.raises(Rejected, match="cannot be read by this version"):
        await breakglass.act(given, held.world.store, 1)


async def test_a_closed_cluster_is_permissive_again_where_no_controller_is_set_to_close_it() -> None:
    async with office(config(Mode.PERMISSIVE)) as held:
        await held.alter(mode=Mode.CLOSED)
        answer = await act(held, "--mode", "permissive")
        assert (held.view.mode, answer["mode"]) == (Mode.PERMISSIVE, "permissive")
        assert "access_mode" in answer["note"]
        await held.world.pass_ms(1_000)
        assert held.view.mode is Mode.PERMISSIVE
        with pytest.raises(Conflict, match="nothing to lower"):
            await act(held, "--mode", "permissive")


async def test_a_controller_that_is_set_to_close_it_does_so_again(held: Office) -> None:
    given = breakglass.parse_arguments(["--mode", "permissive"])
    answer = await breakglass.act(given, held.world.store, 1)
    assert answer["mode"] == "permissive"
    await held.world.until(lambda: held.view.mode is Mode.CLOSED and held.view.access.generation == 3)


class Busy(MemoryStore):
    """Somebody else changes access before each commit, so often."""

    others = 0

    async def commit(self, transaction: Transaction) -> store.Outcome:
        if self.others:
            self.others -= 1
            current = await self.get("access/state")
            assert current is not None
            await super().commit(Transaction((), (store.Put("access/state", current.value),)))
        return await super().commit(transaction)


async def test_what_changes_meanwhile_is_seen_and_not_written_over(held: Office) -> None:
    busy = Busy(held.world.clock)
    items = (await held.world.store.list_all()).items
    await busy.commit(Transaction((), tuple(store.Put(item.key, item.value) for item in items)))
    busy.others = 3
    assert (await breakglass.act(breakglass.parse_arguments([]), busy, 1))["generation"] == 2
    busy.others = 1_000
    with pytest.raises(Conflict, match="nothing was changed"):
        await breakglass.act(breakglass.parse_arguments([]), busy, 1)


async def test_where_there_is_nothing_to_open_it_says_why() -> None:
    given = breakglass.parse_arguments([])
    async with cell() as world:
        with pytest.raises(NotFound, match="no such cluster"):
            await breakglass.act(given, world.store, 1)
        old = store.Put(records.CLUSTER_KEY, records.encode(Cluster("c1", b"i" * 16, ACCESS.level - 1)))
        await world.store.commit(Transaction((), (old,)))
        with pytest.raises(UnsupportedVersion, match=f"feature level {ACCESS.level}"):
            await breakglass.act(given, world.store, 1)
        await world.store.commit(Transaction((), (store.Put(RESTORING_KEY, b"1"),)))
        with pytest.raises(Conflict, match="restore"):
            await breakglass.act(given, world.store, 1)


def test_it_does_one_thing_at_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (["--end", "--mode", "permissive"], ["--mode", "open"]):
        with pytest.raises(SystemExit):
            breakglass.parse_arguments(wrong)
    assert isinstance(breakglass.parse_arguments([]), argparse.Namespace)
    assert "usage" in capsys.readouterr().err


NOT_YET = {ErrorCode.NOT_CONTROLLER, ErrorCode.METADATA_UNAVAILABLE, ErrorCode.NETWORK_EXCEPTION}


class Closed:
    """A controller as a process, of a cluster that is closed from its first moment."""

    def __init__(self, directory: Path, etcd: EtcdProcess) -> None:
        self.admin = new_api_key()
        self.token = "hrn_" + "t" * 43
        files = {"token": self.token, "keys": verifier_of(self.admin)}
        for name, text in files.items():
            (directory / name).write_text(f"{text}\n")
            (directory / name).chmod(0o600)
        self.process = ControllerProcess(
            *(directory, 1, etcd.endpoint, "--access-mode", "closed", "--node-token-file", str(directory / "token")),
            *("--admin-key-file", str(directory / "keys")),
        )

    async def create(self, key: str | None) -> ErrorCode:
        """What an admin node is answered that wants a topic for who shows ``key``."""
        shown: list[tuple[str, str | bytes]] = [(NODE_KEY, "admin-1"), (TOKEN_KEY, self.token)]
        shown += [] if key is None else [(FORWARDED_KEY, key.encode())]
        async with Client.open(self.process.endpoint, Security(lambda _: tuple(shown))) as client:

            async def attempt() -> ErrorCode:
                try:
                    return ErrorCode((await client.create("a", 1)).error)
                except HeadraceError as error:
                    return error.code

            return await eventually(attempt, lambda code: code not in NOT_YET)


@pytest.mark.integration
async def test_on_a_real_etcd_with_a_real_controller(etcd: EtcdProcess, tmp_path: Path) -> None:
    closed, at = Closed(tmp_path, etcd), ("--etcd", etcd.endpoint, "--wait", 20)
    done = ErrorCode.INVALID_REPLICATION_FACTOR  # it may, and there is no broker
    await closed.process.start()
    try:
        assert await closed.create(closed.admin) == done
        assert await closed.create(None) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert await closed.create(new_api_key()) == ErrorCode.SASL_AUTHENTICATION_FAILED
        await closed.process.kill()
        made = await said("breakglass", *at)
        await closed.process.start()
        assert await closed.create(made["key"]) == done
        await said("breakglass", *at, "--end")
        gone = await eventually(lambda: closed.create(made["key"]), lambda code: code != done)
        assert gone == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert await closed.create(closed.admin) == done
        assert made["key"] not in closed.process.log.read_text()
    finally:
        await closed.process.close()
    code, out, err = await run("breakglass", *at, "--cluster", "another")
    assert (code, out) == (1, "")
    assert "no such cluster" in err
