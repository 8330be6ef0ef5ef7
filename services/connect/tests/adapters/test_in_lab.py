"""Topics and the work group over real brokers and coordinators, in virtual time."""

from __future__ import annotations

import asyncio

import pytest
from libs.sdk.tests.kit.cluster import Labs
from services.connect.tests.kit.hosts import Outer

from headrace import aio
from headrace_common.core.errors import FencedOwner, FencedWriter, HeadraceError, Rejected
from headrace_common.runtime.clock import SystemClock
from headrace_connect.runtime.adapters.topics import SdkTopics
from headrace_connect_worker.adapters.config_log import SdkConfigLog
from headrace_connect_worker.core.records import ConnectorConfigured, RunState, TargetSet, TargetState
from headrace_connect_worker.core.refusals import BadCommand
from headrace_connect_worker.ports import ConnectorOffset, WriteFailed
from headrace_lab.lab import install_lab

from .lab_workers import CALL_MS, LabWorker, until

CONFIG = {"connector.class": "files", "tasks.max": "4"}


async def test_workers_share_connectors_and_go_on_without_one_of_them(labs: Labs) -> None:
    cluster = labs(2, group_consumer_heartbeat_interval_ms=200)
    outer = Outer()
    outer.splits["c"] = ["w", "x", "y", "z"]
    with install_lab(cluster.lab):
        first = await LabWorker(cluster, "a", outer).open()
        await until(lambda: first.leads, first)
        second = await LabWorker(cluster, "b", outer).open()
        await until(lambda: second.herd.is_ready, first, second)
        assert await first.herd.put_config("c", CONFIG)
        await until(lambda: len(first.hosts.tasks) == len(second.hosts.tasks) == 2, first, second)
        await until(
            lambda: all(
                (status := second.herd.statuses.task("c", task)) is not None and status.state is RunState.RUNNING
                for task in range(4)
            ),
            first,
            second,
        )
        assert second.herd.leader is not None
        assert second.herd.leader.url == "http://a:8083"
        leader = first.herd.state.leader
        for number in range(4):
            outer.splits[f"d{number}"] = ["x"]
            await first.herd.put_config(f"d{number}", CONFIG)
        await until(lambda: len(first.hosts.tasks) == len(second.hosts.tasks) == 4, first, second)
        assert first.leads
        assert first.herd.state.leader == leader, "who leads goes on while work is shared anew"
        calls = [call for worker in (first, second) for call in worker.hosts.calls if call[1].startswith("d")]
        assert sorted(call[:2] for call in calls) == sorted(
            (what, f"d{number}") for number in range(4) for what in ("start", "watch")
        ), "nothing is begun that is taken away at once"
        for number in range(4):
            await first.herd.delete(f"d{number}")
        await until(lambda: len(first.hosts.tasks) + len(second.hosts.tasks) == 4, first, second)
        kept = {place: task.generation for place, task in second.hosts.tasks.items()}
        await first.stop()
        await until(lambda: second.leads and len(second.hosts.tasks) == 4, second)
        assert kept.items() <= {place: task.generation for place, task in second.hosts.tasks.items()}.items()
        await second.herd.delete("c")
        await until(lambda: not second.hosts.tasks and second.herd.statuses.connector("c") is None, second)
        third = await LabWorker(cluster, "c", outer).open()
        await until(lambda: third.herd.is_ready, third)
        assert not third.herd.state.connectors
        for worker in (second, third):
            await worker.stop()


async def test_who_leaves_hands_over_a_few_connectors_at_a_time(labs: Labs) -> None:
    cluster = labs(2, group_consumer_heartbeat_interval_ms=200)
    outer = Outer()
    with install_lab(cluster.lab):
        first, second = [await LabWorker(cluster, name, outer).open() for name in "ab"]
        await until(lambda: first.leads or second.leads, first, second)
        await until(lambda: first.herd.is_ready and second.herd.is_ready, first, second)
        leader, other = (first, second) if first.leads else (second, first)
        for number in range(8):
            outer.splits[f"d{number}"] = ["x"]
            await leader.herd.put_config(f"d{number}", CONFIG)
        await until(lambda: len(first.hosts.tasks) == len(second.hosts.tasks) == 4, first, second)
        other.hosts.slow_start.clear()
        leader.hosts.slow_stop.clear()
        begun = len(other.hosts.calls)
        leaving = asyncio.get_running_loop().create_task(leader.stop())
        await asyncio.sleep(0.5)
        leader.hosts.slow_stop.set()
        await until(lambda: len([call for call in other.hosts.calls[begun:] if call[0] == "start"]) == 2, other)
        assert len(leader.hosts.tasks) == 2, "the rest goes on"
        assert leader.leads
        other.hosts.slow_start.set()
        await until(lambda: len(other.hosts.tasks) == 8 and other.leads, other)
        await leaving
        await other.stop()


async def test_an_older_leader_writes_nothing_more_whatever_it_has_begun(labs: Labs) -> None:
    cluster = labs(1)
    with install_lab(cluster.lab):
        servers = ",".join(cluster.bootstrap_servers)
        async with aio.AdminClient(servers) as admin:
            clock = SystemClock()
            log = SdkConfigLog(servers, "connect-configs", "w", SdkTopics(admin, clock), clock, CALL_MS)
            old = await log.lead(10)
            await old.write([ConnectorConfigured("a", {"k": "1"}), TargetSet("a", TargetState.PAUSED)])
            await old._producer.begin_transaction()
            await old._producer.send("connect-configs", b"half", key=b"connector-half", partition=0)
            await old._producer.flush()
            new = await log.lead(11)
            await new.write([ConnectorConfigured("b", {"k": "2"})])
            with pytest.raises(HeadraceError):
                await old._producer.commit_transaction()
            with pytest.raises(WriteFailed) as failed:
                await old.write([ConnectorConfigured("c", {})])
            assert not failed.value.unknown
            with pytest.raises(FencedOwner):
                await log.lead(10)
            last = await new.write([ConnectorConfigured("b", {"k": "3"})])
            async with aio.Producer(servers) as foreign:
                with pytest.raises(FencedWriter):
                    await (await foreign.send("connect-configs", b"{}", key=b"connector-x"))
                with pytest.raises(FencedWriter):
                    await foreign.fence("connect-configs", 0, 10)
            seen: list[object] = []
            async for read in log.follow():
                seen += [record for _, record in read.records]
                if read.at_end:
                    assert read.records[-1][0] == last
                    break
            assert seen == [
                ConnectorConfigured("a", {"k": "1"}),
                TargetSet("a", TargetState.PAUSED),
                ConnectorConfigured("b", {"k": "2"}),
                ConnectorConfigured("b", {"k": "3"}),
            ]
            async with aio.Producer(servers) as foreign:
                await foreign.fence("connect-configs", 0, 12)
            with pytest.raises(WriteFailed):
                await new.write([ConnectorConfigured("b", {"k": "4"})])
            await old.close()
            await new.close()


STEPS = [
    "behind init_transactions",
    "behind fence",
    "behind send",
    "behind flush",
    "before commit_transaction",
    "behind commit_transaction",
]


@pytest.mark.parametrize("step", STEPS)
async def test_a_leader_that_dies_at_any_step_leaves_all_of_a_change_or_nothing(
    labs: Labs, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes over, or writes its second change, and stops at the step; then it is gone, and another one leads."""
    cluster = labs(1, group_consumer_heartbeat_interval_ms=200, group_rejoin_grace_ms=500)
    when, name = step.split()
    reached = asyncio.Event()
    real = getattr(aio.Producer, name)

    async def stop_there(self: aio.Producer, *args: object, **more: object) -> object:
        if self._settings.transactional_id is None or reached.is_set():
            return await real(self, *args, **more)
        if when == "behind":
            await real(self, *args, **more)
        reached.set()
        await asyncio.Event().wait()
        raise AssertionError("it never goes on")

    outer = Outer()
    with install_lab(cluster.lab):
        first = await LabWorker(cluster, "a", outer).open()
        if name not in ("init_transactions", "fence"):
            await until(lambda: first.leads, first)
            await first.herd.put_config("kept", CONFIG)
        monkeypatch.setattr(aio.Producer, name, stop_there)
        late = asyncio.ensure_future(first.herd.put_config("late", CONFIG, target=TargetState.PAUSED))
        await until(reached.is_set)
        left: list[aio.Producer] = []
        with monkeypatch.context() as dying:
            dying.setattr(aio.Producer, "close", lambda self: _leave(self, left))
            await first.die()
        await asyncio.wait([late])
        late.exception()
        second = await LabWorker(cluster, "b", outer).open()
        await until(lambda: second.leads, second)
        known = second.herd.state.connectors
        if name not in ("init_transactions", "fence"):
            assert known["kept"].target is TargetState.STARTED
        if step == "behind commit_transaction":
            assert known["late"].target is TargetState.PAUSED
        else:
            assert "late" not in known or known["late"].target is TargetState.PAUSED, "all of it"
        await second.herd.put_config("next", CONFIG)
        await second.stop()
        for producer in left:
            await producer.close()


async def _leave(producer: aio.Producer, left: list[aio.Producer]) -> None:
    """As a process that is killed: what it has begun stays open."""
    left.append(producer)


async def test_a_cluster_that_is_away_for_a_while_moves_nothing(labs: Labs) -> None:
    cluster = labs(1, group_consumer_heartbeat_interval_ms=200)
    outer = Outer()
    outer.splits["c"] = ["w", "x"]
    with install_lab(cluster.lab):
        worker = await LabWorker(cluster, "a", outer).open()
        await until(lambda: worker.leads, worker)
        await worker.herd.put_config("c", CONFIG)
        await until(lambda: len(worker.hosts.tasks) == 2, worker)
        leader, calls = worker.herd.state.leader, list(worker.hosts.calls)
        cluster.kill_coordinator(1)
        await asyncio.sleep(20)
        cluster.restart_coordinator(1)
        cluster.kill(1)
        await asyncio.sleep(20)
        cluster.restart(1)
        await worker.herd.put_config("d", CONFIG)
        await until(lambda: "d" in worker.hosts.watches, worker)
        assert worker.herd.state.leader == leader
        assert [call for call in worker.hosts.calls if call[1] == "c"] == [call for call in calls if call[1] == "c"]
        await worker.stop()


async def test_a_leader_that_had_nothing_to_write_for_long_writes_again(labs: Labs) -> None:
    cluster = labs(1, transactions={"unit_prepared_timeout_ms": 1_000, "transactional_id_check_interval_ms": 100})
    with install_lab(cluster.lab):
        worker = await LabWorker(cluster, "a", Outer()).open()
        await until(lambda: worker.leads, worker)
        for number in range(3):
            await worker.herd.put_config(f"c{number}", CONFIG)
            await asyncio.sleep(10)
        assert sorted(worker.herd.state.connectors) == ["c0", "c1", "c2"]
        await worker.stop()


async def test_a_topic_that_was_made_anew_is_said(labs: Labs) -> None:
    cluster = labs(1)
    with install_lab(cluster.lab):
        worker = await LabWorker(cluster, "a", Outer()).open()
        await until(lambda: worker.leads, worker)
        await worker.herd.put_config("c", CONFIG)
        async with aio.AdminClient(worker.servers) as admin:
            await admin.delete_topic("connect-configs")
            await SdkTopics(admin, SystemClock()).ensure("connect-configs", 1, {"cleanup.policy": "compact"})
        async with aio.Producer(worker.servers) as producer:
            await (await producer.send("connect-configs", b"{}", key=b"other"))
        with pytest.raises(Rejected, match="start the workers anew"):
            await until(lambda: False, worker)
        await worker.close()


async def test_an_empty_topic_is_at_its_end(labs: Labs) -> None:
    cluster = labs(1)
    with install_lab(cluster.lab):
        servers = ",".join(cluster.bootstrap_servers)
        async with aio.AdminClient(servers) as admin:
            clock = SystemClock()
            log = SdkConfigLog(servers, "connect-configs", "w", SdkTopics(admin, clock), clock, CALL_MS)
            async for read in log.follow():
                assert (list(read.records), read.at_end) == ([], True)
                break


async def test_positions_of_sources_and_of_groups_are_read_set_and_forgotten(labs: Labs) -> None:
    cluster = labs(1)
    cluster.create_topic("t", 2)
    with install_lab(cluster.lab):
        worker = LabWorker(cluster, "a", Outer())
        await worker.open()
        offsets = worker.offsets
        assert await offsets.read("c", "source", {}) == []
        one = ConnectorOffset({"split": "de"}, {"cursor": 5})
        two = ConnectorOffset({"split": "fr"}, {"cursor": 7})
        await offsets.change("c", "source", {}, 5, [one, two])
        await offsets.change("d", "source", {}, 5, [one])
        assert await offsets.read("c", "source", {}) == [one, two]
        await offsets.change("c", "source", {}, 6, [ConnectorOffset({"split": "fr"}, None)])
        assert await offsets.read("c", "source", {}) == [one]
        with pytest.raises(FencedOwner):
            await offsets.change("c", "source", {}, 5, [two])
        await offsets.change("c", "source", {}, 7, None)
        assert await offsets.read("c", "source", {}) == []
        assert await offsets.read("d", "source", {}) == [one]
        at = ConnectorOffset({"kafka_topic": "t", "kafka_partition": 0}, {"kafka_offset": 0})
        assert await offsets.read("s", "sink", {}) == []
        await offsets.change("s", "sink", {}, 1, [ConnectorOffset(at.partition, None)])
        await offsets.change("s", "sink", {}, 1, [ConnectorOffset(at.partition, {"kafka_offset": 5})])
        assert await offsets.read("s", "sink", {}) == [at], "its end"
        await offsets.change("s", "sink", {}, 1, [at])
        assert await offsets.read("s", "sink", {}) == [at]
        await offsets.change("s", "sink", {}, 1, [ConnectorOffset(at.partition, None)])
        assert await offsets.read("s", "sink", {}) == []
        await offsets.change("s", "sink", {}, 1, [ConnectorOffset(at.partition, None)])
        await offsets.change("s", "sink", {}, 1, [at])
        await offsets.change("s", "sink", {}, 1, None)
        assert await offsets.read("s", "sink", {}) == []
        for wrong in (
            ConnectorOffset({"split": ""}, {}),
            ConnectorOffset({"file": "x"}, {}),
            ConnectorOffset({"split": "x"}, {"cursor": "y" * 5_000}),
        ):
            with pytest.raises(BadCommand):
                await offsets.change("c", "source", {}, 9, [wrong])
        for wrong in (
            ConnectorOffset({"kafka_topic": "t"}, {"kafka_offset": 0}),
            ConnectorOffset(at.partition, {"kafka_offset": -1}),
            ConnectorOffset(at.partition, {"offset": 1}),
            ConnectorOffset(at.partition | {"kafka_partition": 2}, {"kafka_offset": 0}),
            ConnectorOffset(at.partition | {"kafka_topic": "none"}, {"kafka_offset": 0}),
        ):
            with pytest.raises(BadCommand):
                await offsets.change("s", "sink", {}, 9, [at, wrong])
            assert await offsets.read("s", "sink", {}) == [], "of none, where one cannot be"
        await worker.close()
