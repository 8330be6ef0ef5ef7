"""Today's services on data, metadata and requests of versions before: nothing of them is lost or refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.unknown_fields import UnknownFieldSet
from services.controller.tests.kit.dialogue import Cell, broker, cell
from services.coordinator.tests.kit.processes import Cluster, until_answered
from tests.compat import record, wire
from tests.compat.standing import KEPT, VERSIONS, metadata, standing

from headrace.transactions import PreparedTransactions
from headrace_common.core.errors import UnsupportedVersion
from headrace_common.core.features import HIGHEST
from headrace_common.core.image import EMPTY_IMAGE, Role
from headrace_common.rpc.convert_delta import delta_from_proto
from headrace_controller.core import records
from headrace_controller.core.store import Put, Transaction
from headrace_controller.engine.nodes import Joining
from headrace_controller.ports import ProbeResult
from headrace_proto.v1 import controller_pb2
from headrace_proto.v1.controller_pb2_grpc import ControllerStub

versions = pytest.mark.parametrize("version", VERSIONS)
real = [pytest.mark.integration, pytest.mark.timeout(240)]


def contents(version: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((KEPT / version / "contents.json").read_text())
    return found


def transcript(version: str) -> list[wire.Exchange]:
    return wire.read(KEPT / version / "transcript.jsonl")


async def level(cluster: Cluster) -> int:
    stub: Any = ControllerStub(cluster.channel(cluster.controller.address))
    found = await until_answered(lambda: stub.DescribeCluster(controller_pb2.DescribeClusterRequest()))
    return int(found.feature_level)


class TestData:
    pytestmark = real

    @versions
    async def test_every_record_offset_and_transaction_is_served(self, version: str, tmp_path: Path) -> None:
        kept = contents(version)
        async with standing(version, tmp_path) as cluster:
            at = cluster.brokers[0].address
            for name, wanted in kept["records"].items():
                topic, _, number = name.rpartition("-")
                assert await asyncio.to_thread(record.read_records, at, topic, int(number)) == wanted, name
            committed = await asyncio.to_thread(record.read_records, at, "ledger", 0, "read_committed")
            assert committed == kept["committed_in_ledger_0"]
            for group, offsets in kept["offsets"].items():
                assert await self.committed(cluster, group) == offsets
            assert not await asyncio.to_thread(record.read_records, at, "ledger", 1, "read_committed")
            with PreparedTransactions(at) as prepared:
                await asyncio.to_thread(prepared.commit_prepared, kept["token"])
            await wire.settled(30, lambda: self.decided(at))  # the marker follows the verdict
            await wire.settled(30, lambda: self.risen(cluster))

    async def decided(self, at: str) -> bool:
        found = await asyncio.to_thread(record.read_records, at, "ledger", 1, "read_committed")
        return [value for _, _, value, _, _ in found] == ["prepared"]

    async def risen(self, cluster: Cluster) -> bool:
        return await level(cluster) == HIGHEST

    async def committed(self, cluster: Cluster, group: str) -> dict[str, int]:
        asked = next(e for e in transcript("level-0") if e.method == "FetchOffsets")
        request: Any = asked.asked()
        request.group_id = group
        channel = cluster.channel(cluster.coordinators[0].address)
        raw = await wire.send(channel, asked.service, asked.method, request.SerializeToString())
        answer: Any = asked.answered(raw)
        return {f"{o.topic}-{o.partition}": o.offset for o in answer.offsets}


class TestRequests:
    @versions
    def test_each_message_is_read_whole(self, version: str) -> None:
        """A field that was taken away, or has another type now, would be left over."""
        for exchange in transcript(version):
            for message in (exchange.asked(), exchange.answered()):
                assert not list(UnknownFieldSet(message)), exchange.name
            assert exchange.asked().SerializeToString() == exchange.request or exchange.method == "Produce"

    @versions
    def test_an_older_controllers_image_is_understood(self, version: str) -> None:
        (watched,) = [e for e in transcript(version) if e.method == "WatchMetadata"]
        update: Any = watched.answered()
        image = EMPTY_IMAGE.apply(delta_from_proto(update))
        assert image.feature_level == 0
        assert {topic.name for topic in image.topics.values()} >= set(record.TOPICS)
        assert {node.feature_level_max for node in image.nodes.values()} == {0}

    @versions
    @pytest.mark.integration
    @pytest.mark.timeout(240)
    async def test_each_request_is_answered_as_it_was(self, version: str, tmp_path: Path) -> None:
        """At the level that the cluster had then, in the order in which they were asked."""
        async with standing(version, tmp_path, controller=("--feature-level-max", "0")) as cluster:
            for exchange in transcript(version):
                channel = cluster.channel(record.address_of(cluster, exchange.service))
                raw = await wire.send(channel, exchange.service, exchange.method, exchange.request)
                answer = exchange.answered(raw)
                assert wire.fields(answer) == wire.fields(exchange.answered()), exchange.name


@pytest.fixture
async def world() -> AsyncIterator[Cell]:
    async with cell() as made:
        yield made


class TestMetadata:
    async def started(self, world: Cell, version: str) -> Any:
        rows = [Put(r.key, r.value) for r in metadata(version).rows if r.key != records.CONTROLLER_KEY]
        for start in range(0, len(rows), 100):
            await world.store.commit(Transaction((), tuple(rows[start : start + 100])))
        engine = await world.active()
        world.probe.results = dict.fromkeys(engine.image.nodes, ProbeResult.REFUSED)  # those processes have ended
        return engine

    @versions
    async def test_the_image_is_what_it_was(self, world: Cell, version: str) -> None:
        engine = await self.started(world, version)
        kept = contents(version)
        assert engine.image.feature_level == 0
        assert {engine.image.topics[i].name: i.hex() for i in engine.image.topics} | kept["topic_ids"] == {
            topic.name: topic.topic_id.hex() for topic in engine.image.topics.values()
        }
        for name, count in record.TOPICS.items():
            topic = engine.image.topic(name)
            assert (topic.partition_count, topic.configs["retention.ms"]) == (count, "-1")
            assert [p.replicas for p in engine.image.partitions_of(topic)] == [(1,)] * count

    @versions
    async def test_it_rises_when_its_last_node_was_replaced_and_not_before(self, world: Cell, version: str) -> None:
        engine = await self.started(world, version)
        registered = list(engine.image.nodes.values())
        assert {node.key.role for node in registered} >= {Role.BROKER, Role.CONTROLLER}
        for node in registered:
            await world.pass_ms(1_000)
            assert engine.image.feature_level == 0
            await engine.register(Joining(replace(node, incarnation=b"n" * 16, feature_level_max=1)))
        await world.until(lambda: engine.image.feature_level == 1)
        with pytest.raises(UnsupportedVersion):
            await engine.register(Joining(broker(9)))

    @versions
    async def test_what_is_written_before_the_rise_the_older_controller_reads(self, world: Cell, version: str) -> None:
        """Going back works: no record of before has another version, or lacks a field that it had."""
        engine = await self.started(world, version)
        await world.join(engine, replace(broker(1), feature_level_max=1), cluster_id=engine.image.cluster_id)
        await world.create(engine, "later")
        for row in metadata(version).rows:
            found = await world.store.get(row.key)
            if found is None or not row.value.startswith(b"{"):
                continue
            before, now = json.loads(row.value), json.loads(found.value)
            assert now["v"] == before["v"], row.key
            assert before.keys() <= now.keys(), row.key
