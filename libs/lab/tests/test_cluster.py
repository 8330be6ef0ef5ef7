"""A whole cluster in the lab, as a program's test has it: groups, transactions, and what befalls nodes."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

import headrace.aio as headrace
from headrace import errors
from headrace.testing import Cluster, lab
from headrace_common.core.errors import Rejected

SEEDS = range(3)


async def send(cluster: Cluster, values: list[bytes], **settings: object) -> None:
    async with cluster.producer(**settings) as producer:  # type: ignore[arg-type]  # settings of a producer
        for value in values:
            await producer.send("t", value)
        await producer.flush()


async def read_all(cluster: Cluster, topic: str = "t") -> list[bytes]:
    async with cluster.consumer() as consumer:
        await consumer.assign([(topic, n) for n in sorted(await consumer.partitions_for(topic))])
        return [record.value or b"" for record in await consumer.read_to_end(timeout_ms=60_000)]


def values(count: int, word: str = "v") -> list[bytes]:
    return [f"{word}{number}".encode() for number in range(count)]


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_group_goes_on_without_the_member_that_was_lost_and_over_a_coordinators_death(seed: int) -> None:
    async with lab(seed, brokers=3, coordinators=2) as cluster:
        await cluster.create_topic("t", 4)
        read: list[bytes] = []
        async with cluster.consumer("t", group_id="g") as stays:
            leaves = cluster.consumer("t", group_id="g")
            await asyncio.gather(stays.poll(timeout_ms=5_000), leaves.poll(timeout_ms=5_000))
            await send(cluster, values(20))
            await leaves.close()
            cluster.kill(coordinator=1)
            while not set(values(20)) <= set(read):
                read += [record.value or b"" for record in await stays.poll(timeout_ms=1_000)]
            await stays.commit()
        async with cluster.admin() as admin:
            lag = await admin.group_lag("g")
        assert [one.lag for one in lag.values()] == [0] * 4


@pytest.mark.parametrize("seed", SEEDS)
async def test_what_is_committed_is_read_and_what_is_aborted_is_not(seed: int) -> None:
    async with lab(seed, brokers=3) as cluster:
        await cluster.create_topic("t", 2)
        async with cluster.producer(transactional_id="x") as producer:
            await producer.init_transactions()
            for number, value in enumerate(values(6)):
                await producer.begin_transaction()
                await producer.send("t", value)
                if number == 3:
                    await producer.flush()
                    cluster.kill(broker=1)
                if number % 2:
                    await producer.abort_transaction()
                else:
                    await producer.commit_transaction()
        async with cluster.consumer(isolation_level="read_committed") as consumer:
            await consumer.assign([("t", 0), ("t", 1)])
            read: list[bytes | None] = []
            async with asyncio.timeout(60):
                while len(read) < 3:  # a commit is answered before its markers are written
                    read += [record.value for record in await consumer.read_to_end(timeout_ms=60_000)]
        assert sorted(read) == [b"v0", b"v2", b"v4"]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("power", [False, True])
async def test_nothing_acknowledged_is_lost_when_all_brokers_die_at_once_and_come_back(seed: int, power: bool) -> None:
    async with lab(seed, brokers=3) as cluster:
        await cluster.create_topic("t", 3)
        await send(cluster, values(30))
        for broker in (1, 2, 3):
            cluster.kill(broker, power=power)
        for broker in (2, 1, 3):
            cluster.restart(broker)
        await send(cluster, values(3, "later"))
        assert sorted(await read_all(cluster)) == sorted(values(30) + values(3, "later"))


async def test_a_broker_that_is_told_to_stop_leaves_and_comes_back() -> None:
    async with lab(1, brokers=2) as cluster:
        await cluster.create_topic("t", 2)
        await send(cluster, values(10))
        await cluster.stop(broker=1)
        with pytest.raises(Rejected, match="broker-1 does not run"):
            cluster.kill(broker=1)
        await send(cluster, values(10, "w"), acks=1)
        cluster.restart(broker=1)
        assert len(await read_all(cluster)) == 20


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_leader_that_is_cut_off_is_replaced_and_takes_nothing_that_counts(seed: int) -> None:
    async with lab(seed, brokers=3) as cluster:
        await cluster.create_topic("t", 1)
        async with cluster.admin() as admin:
            leader = (await admin.describe_topic("t")).partitions[0].leader
            cluster.isolate(leader)
            await send(cluster, values(10))
            assert (await admin.describe_topic("t")).partitions[0].leader != leader
            cluster.heal()
            await send(cluster, values(5, "healed"))
        assert sorted(await read_all(cluster)) == sorted(values(10) + values(5, "healed"))


async def test_ways_that_are_cut_one_way_delayed_or_reset_lose_nothing() -> None:
    async with lab(4, brokers=3) as cluster:
        await cluster.create_topic("t", 3)
        cluster.cut(1, 2, one_way=True)
        cluster.delay(2, 3, ms=(50, 200))
        await send(cluster, values(10))
        cluster.reset("test", 1)
        cluster.reset(1, 3)
        await send(cluster, values(10, "w"))
        cluster.heal()
        assert sorted(await read_all(cluster)) == sorted(values(10) + values(10, "w"))


async def test_a_pause_is_survived() -> None:
    async with lab(4, brokers=3) as cluster:
        await cluster.create_topic("t", 3)
        cluster.pause(broker=2)
        await send(cluster, values(10))
        await cluster.pass_time(seconds=30)
        cluster.resume(broker=2)
        await send(cluster, values(10, "w"))
        assert sorted(await read_all(cluster)) == sorted(values(10) + values(10, "w"))


async def test_a_slow_disk_delays_and_a_full_one_is_left() -> None:
    async with lab(2, brokers=1) as cluster:
        await cluster.create_topic("t")
        loop = asyncio.get_running_loop()
        cluster.slow_disk(1, ms=(500, 500))
        began = loop.time()
        await send(cluster, values(1))
        assert loop.time() - began >= 0.5
        cluster.fill_disk(1)
        await cluster.pass_time(minutes=1)
        async with cluster.producer(delivery_timeout_ms=2_000, request_timeout_ms=1_000) as producer:
            with pytest.raises(errors.HeadraceError):
                await (await producer.send("t", b"too much"))
        cluster.free_disk(1)
        await cluster.pass_time(minutes=1)
        await send(cluster, values(1, "again"))
        assert await read_all(cluster) == [b"v0", b"again0"]


async def test_a_broken_disk_ends_its_broker_and_nothing_else() -> None:
    async with lab(2, brokers=3) as cluster:
        await cluster.create_topic("t", 3)
        cluster.break_disk(2)
        await send(cluster, values(10))
        with pytest.raises(Rejected, match="broker-2 does not run"):
            cluster.kill(broker=2)
        assert sorted(await read_all(cluster)) == sorted(values(10))


async def test_offsets_of_an_idle_group_expire_after_a_week() -> None:
    async with lab(3) as cluster:
        await cluster.create_topic("t")
        await send(cluster, values(3))
        async with cluster.consumer("t", group_id="idle") as consumer:
            await consumer.poll(timeout_ms=10_000)
            await consumer.commit()
        async with cluster.admin() as admin:
            await cluster.pass_time(minutes=11)
            assert [group.group_id for group in (await admin.list_groups()).groups] == ["idle"]
            cluster.jump_clocks(days=7)
            await cluster.pass_time(minutes=11)
            assert [group.group_id for group in (await admin.list_groups()).groups] == []


@pytest.mark.parametrize("wrong", [{"brokers": 0}, {"controllers": 0}, {"coordinators": -1}, {"seed": "x"}])
async def test_a_lab_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(Rejected, match="at least one broker and one controller, and a seed"):
        async with lab(**wrong):
            pass


async def test_who_is_named_wrongly_is_said() -> None:
    async with lab(1) as cluster:
        with pytest.raises(Rejected, match="there is no node broker-7; there are etcd, controller-1"):
            cluster.kill(broker=7)
        with pytest.raises(Rejected, match="name one node"):
            cluster.kill()
        with pytest.raises(Rejected, match="one is enough"):
            async with lab(1):
                pass


def test_a_failure_says_its_seed_and_the_loop_is_whole_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_LAB_SEED", "77")

    async def fail() -> None:
        kind = type(asyncio.get_running_loop())
        with pytest.raises(ZeroDivisionError) as raised:
            async with lab():
                raise ZeroDivisionError
        assert re.search(r"seed 77 repeats this", raised.value.__notes__[0])
        assert type(asyncio.get_running_loop()) is kind
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert await asyncio.to_thread(lambda: 5) == 5

    asyncio.run(fail())


def test_what_a_test_leaves_running_ends_with_the_lab() -> None:
    async def leave() -> list[str]:
        said: list[str] = []

        async def wait() -> None:
            try:
                await asyncio.sleep(3_600)
            finally:
                said.append("ended")

        async with lab(1):
            task = asyncio.create_task(wait())
            await asyncio.sleep(1)
        assert task.cancelled()
        return said

    assert asyncio.run(leave()) == ["ended"]


def test_one_seed_is_one_history() -> None:
    async def history(seed: int) -> tuple[list[bytes], float]:
        async with lab(seed, brokers=3) as cluster:
            await cluster.create_topic("t", 3)
            await asyncio.gather(*(send(cluster, values(5, word)) for word in "abc"))
            cluster.kill(broker=1)
            return await read_all(cluster), asyncio.get_running_loop().time()

    first, again, other = (asyncio.run(history(seed)) for seed in (5, 5, 6))
    assert first == again
    assert first != other


async def test_clients_of_a_lab_are_those_of_asyncio() -> None:
    from headrace import Producer

    async with lab(1) as cluster:
        with pytest.raises(Rejected, match=r"headrace\.aio"):
            Producer(cluster.bootstrap_servers)
        async with headrace.AdminClient(cluster.bootstrap_servers) as admin:
            assert len(await admin.list_brokers()) == 1
