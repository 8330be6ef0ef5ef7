"""
Writes what ``tests/compat`` keeps of a version: a broker's data directory, the metadata, and requests with answers.

``python -m tests.compat.record tests/compat/kept/NAME``, with the packages of the version to be kept first on the path.
What is written stays as it is for good; a later version gets a directory of its own.
"""

from __future__ import annotations

import asyncio
import io
import json
import lzma
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from services.coordinator.tests.kit.processes import Cluster, running_cluster, until_answered
from tests.compat import wire

from headrace import Consumer, Producer
from headrace_common.core.batch import Codec, RecordColumns, build_batch
from headrace_common.core.batch.rows import build_row_batch
from headrace_common.core.image import ShardKind
from headrace_common.rpc.convert import shard_kind_to_proto
from headrace_proto.v1 import broker_pb2, cluster_pb2, controller_pb2, coordinator_pb2, transaction_pb2
from headrace_proto.v1.controller_pb2_grpc import ControllerStub

TOPICS: Final = {"plain": 2, "compacted": 1, "rows": 1, "ledger": 2}
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
GROUPS: Final = ("readers", "classic-readers")
LASTING: Final = (
    *("--offsets-retention-minutes", "5256000"),
    *("--transactional-id-expiration-ms", "315360000000"),
)
"""So that what is kept is as good in ten years."""
_TIME_MS: Final = 1_700_000_000_000
_SHARDS: Final = 2


async def recorded(into: Path) -> None:
    """Make it, in a directory that is thrown away."""
    into.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        async with running_cluster(directory, coordinators=1, settings=LASTING) as cluster:
            await _topics(cluster)
            token = await asyncio.to_thread(_filled, cluster.brokers[0].address)
            contents = await _contents(cluster, token)
            for process in (*cluster.coordinators, *cluster.brokers, cluster.controller):
                await process.stop()
            _packed(directory / "data-1", into / "data-1.tar.xz")
            _backed_up(_etcd_of(cluster), into / "metadata.backup")
            await cluster.etcd.stop()
        (into / "contents.json").write_text(json.dumps(contents, indent=1) + "\n")
        async with running_cluster(directory, coordinators=1, settings=LASTING) as cluster:
            wire.write(into / "transcript.jsonl", await _transcript(cluster, contents))


async def _topics(cluster: Cluster) -> None:
    stub: Any = ControllerStub(cluster.channel(cluster.controller.address))
    changes = [
        controller_pb2.AlterConfig(name=f"{name}.num.partitions", op=controller_pb2.SET, value=str(_SHARDS))
        for name in ("offsets.topic", "transaction.state.log")
    ]
    everyone = controller_pb2.ConfigResource(type=controller_pb2.BROKER_CONFIG, name="")
    alter = controller_pb2.IncrementalAlterConfigsRequest(
        resources=[controller_pb2.AlterConfigsResource(resource=everyone, changes=changes)]
    )
    altered = await stub.IncrementalAlterConfigs(alter)
    assert not any(result.error for result in altered.results), altered
    topics = [
        controller_pb2.NewTopic(
            name=name,
            partition_count=count,
            replication_factor=1,
            configs={"retention.ms": "-1", **({"cleanup.policy": "compact"} if name == "compacted" else {})},
        )
        for name, count in TOPICS.items()
    ]
    answer = await stub.CreateTopics(controller_pb2.CreateTopicsRequest(topics=topics, timeout_ms=30_000))
    assert not any(topic.error for topic in answer.topics), answer
    for kind in ShardKind:
        await stub.EnsureInternalTopic(controller_pb2.EnsureInternalTopicRequest(kind=shard_kind_to_proto(kind)))
    await cluster.find(GROUPS[0])
    await cluster.locate(broker_pb2.TRANSACTION, "committed-id")


async def _ids(cluster: Cluster) -> dict[str, str]:
    request = broker_pb2.MetadataRequest(topics=list(TOPICS)).SerializeToString()
    raw = await wire.send(cluster.channel(cluster.brokers[0].address), "Broker", "Metadata", request)
    found = broker_pb2.MetadataResponse.FromString(raw)
    return {topic.name: topic.topic_id.hex() for topic in found.topics}


def _filled(at: str) -> str:
    """Write records, transactions and positions of groups; the token of a transaction that is left prepared."""
    for codec in CODECS:
        with Producer(at, compression_type=codec) as producer:
            for number in range(8):
                headers = [("n", str(number).encode()), ("nothing", None)] if number % 2 else None
                key = None if number % 3 == 0 else f"k{number}".encode()
                value = None if number == 5 else f"{codec}-{number}-".encode() + b"x" * 40
                producer.send(
                    "plain", value, key, partition=number % 2, headers=headers, timestamp_ms=_TIME_MS + number
                )
    with Producer(at) as producer:
        for number in range(6):
            producer.send("compacted", f"v{number}".encode(), f"k{number % 2}".encode(), timestamp_ms=_TIME_MS)
    with Producer(at, transactional_id="committed-id") as producer:
        with producer.transaction():
            producer.send("ledger", b"committed", partition=0, timestamp_ms=_TIME_MS)
        producer.begin_transaction()
        producer.send("ledger", b"aborted", partition=0, timestamp_ms=_TIME_MS)
        producer.flush()
        producer.abort_transaction()
    with Producer(at, transactional_id="prepared-id") as producer:
        producer.begin_transaction()
        producer.send("ledger", b"prepared", partition=1, timestamp_ms=_TIME_MS)
        token = str(producer.prepare_transaction())
    for group, protocol in zip(GROUPS, ("consumer", "classic"), strict=True):
        with Consumer(
            "plain", bootstrap_servers=at, group_id=group, group_protocol=protocol, auto_offset_reset="earliest"
        ) as consumer:
            got = 0
            while got < 8 * len(CODECS):
                got += len(consumer.poll(timeout_ms=1_000))
            consumer.commit()
    return token


async def _contents(cluster: Cluster, token: str) -> dict[str, Any]:
    """Write batches of rows, and say what there is of everything."""
    at, ids = cluster.brokers[0].address, await _ids(cluster)
    rows = RecordColumns([b"row-0", b"row-1"], [b"k", b"k"], _TIME_MS)
    for codec in (Codec.NONE, Codec.GZIP):
        await _produce(cluster, ids["rows"], build_row_batch(rows, codec=codec))
    records = {}
    for topic, count in TOPICS.items():
        for partition in range(count):
            records[f"{topic}-{partition}"] = await asyncio.to_thread(read_records, at, topic, partition)
    committed = await asyncio.to_thread(read_records, at, "ledger", 0, "read_committed")
    return {
        "topic_ids": ids,
        "records": records,
        "committed_in_ledger_0": committed,
        "offsets": {group: {"plain-0": 20, "plain-1": 20} for group in GROUPS},
        "token": token,
    }


async def _produce(cluster: Cluster, topic_id: str, batch: bytes) -> None:
    raw = await wire.send(
        cluster.channel(cluster.brokers[0].address), "Broker", "Produce", produce_request(topic_id, batch)
    )
    answer = broker_pb2.ProduceResponse.FromString(raw)
    assert answer.partitions[0].error == 0, answer


def produce_request(topic_id: str, batch: bytes) -> bytes:
    """One batch for partition 0, for all in-sync replicas."""
    part = broker_pb2.ProducePartition(topic_id=bytes.fromhex(topic_id), partition=0, batch=batch)
    return broker_pb2.ProduceRequest(
        correlation_id=1, acks=-1, timeout_ms=10_000, partitions=[part]
    ).SerializeToString()


def read_records(at: str, topic: str, partition: int, isolation: str = "read_uncommitted") -> list[Any]:
    """All records of a partition: offset, key, value, headers, time."""
    found: list[Any] = []
    with Consumer(bootstrap_servers=at, isolation_level=isolation, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, partition)])
        end = consumer.end_offsets([(topic, partition)])[topic, partition]
        while consumer.position((topic, partition)) < end:
            for r in consumer.poll(timeout_ms=500):
                headers = [[name, _text(value)] for name, value in r.headers or ()]
                found.append([r.offset, _text(r.key), _text(r.value), headers, r.timestamp_ms])
    return found


def _text(value: bytes | None) -> str | None:
    return None if value is None else bytes(value).decode()


async def _transcript(cluster: Cluster, contents: dict[str, Any]) -> list[wire.Exchange]:
    await ready(cluster)
    found = []
    for service, method, request in requests(contents):
        channel = cluster.channel(address_of(cluster, service))
        raw = request.SerializeToString()
        found.append(wire.Exchange(service, method, raw, await wire.send(channel, service, method, raw)))
    return found


async def ready(cluster: Cluster) -> None:
    """Return when all that is kept is served: logs have leaders, and shards an owner that has loaded them."""
    stub: Any = ControllerStub(cluster.channel(cluster.controller.address))

    async def led() -> bool:
        found = await until_answered(lambda: stub.DescribeCluster(controller_pb2.DescribeClusterRequest()))
        return not found.offline_partition_count

    async def loaded() -> bool:
        groups = coordinator_pb2.ListGroupsRequest().SerializeToString()
        txns = transaction_pb2.ListTransactionsRequest().SerializeToString()
        at = cluster.channel(cluster.coordinators[0].address)
        listed = coordinator_pb2.ListGroupsResponse.FromString(await wire.send(at, "Coordinator", "ListGroups", groups))
        ids = transaction_pb2.ListTransactionsResponse.FromString(
            await wire.send(at, "TransactionCoordinator", "ListTransactions", txns)
        )
        return len(listed.groups) == len(GROUPS) and len(ids.transactions) == 2

    await wire.settled(60, led)
    for kind, key in ((broker_pb2.GROUP, GROUPS[0]), (broker_pb2.TRANSACTION, "committed-id")):
        await cluster.locate(kind, key)
    await wire.settled(60, loaded)


def address_of(cluster: Cluster, service: str) -> str:
    """Who serves it."""
    if service == "Controller":
        return cluster.controller.address
    return (cluster.brokers if service == "Broker" else cluster.coordinators)[0].address


def requests(contents: dict[str, Any]) -> Sequence[tuple[str, str, Any]]:
    """What is asked, in this order; the later ones change something."""
    ids = {name: bytes.fromhex(id) for name, id in contents["topic_ids"].items()}
    at = [(ids[topic], partition) for topic, count in TOPICS.items() for partition in range(count)]
    offsets = [
        broker_pb2.ListOffsetsPartition(topic_id=id, partition=partition, timestamp_ms=-1) for id, partition in at
    ]
    fetched = [broker_pb2.FetchPartition(topic_id=id, partition=p, max_bytes=1 << 20) for id, p in at]
    fetch = {"correlation_id": 1, "max_bytes": 1 << 22, "partitions": fetched}
    topic_config = controller_pb2.ConfigResource(type=controller_pb2.TOPIC_CONFIG, name="compacted")
    old_node = cluster_pb2.Node(
        role=cluster_pb2.BROKER,
        id=7,
        grpc=cluster_pb2.Endpoint(host="127.0.0.1", port=9),
        incarnation=b"7" * 16,
        version="0.1.0",
    )
    commit = coordinator_pb2.OffsetCommit(topic="plain", partition=0, offset=3, metadata="moved")
    token = transaction_token(contents["token"])
    batch = build_batch(RecordColumns([b"appended"], None, _TIME_MS))
    produce = broker_pb2.ProduceRequest.FromString(produce_request(contents["topic_ids"]["plain"], batch))
    return [
        ("Broker", "Metadata", broker_pb2.MetadataRequest(topics=sorted(TOPICS))),
        ("Broker", "ListOffsets", broker_pb2.ListOffsetsRequest(partitions=offsets)),
        (
            "Broker",
            "ListOffsets",
            broker_pb2.ListOffsetsRequest(partitions=offsets, isolation_level=broker_pb2.READ_COMMITTED),
        ),
        ("Broker", "Fetch", broker_pb2.FetchRequest(**fetch)),
        ("Broker", "Fetch", broker_pb2.FetchRequest(**fetch, isolation_level=broker_pb2.READ_COMMITTED)),
        ("Broker", "FindCoordinator", broker_pb2.FindCoordinatorRequest(type=broker_pb2.GROUP, keys=GROUPS)),
        ("Broker", "InitProducerId", broker_pb2.InitProducerIdRequest()),
        ("Controller", "ListTopics", controller_pb2.ListTopicsRequest(limit=100, include_internal=True)),
        ("Controller", "DescribeTopics", controller_pb2.DescribeTopicsRequest(names=sorted(TOPICS))),
        ("Controller", "DescribeConfigs", controller_pb2.DescribeConfigsRequest(resources=[topic_config])),
        ("Controller", "WatchMetadata", controller_pb2.WatchMetadataRequest()),
        ("Controller", "RegisterNode", controller_pb2.RegisterNodeRequest(node=old_node, max_producer_id=-1)),
        ("Controller", "UnregisterNode", controller_pb2.UnregisterNodeRequest(role=cluster_pb2.BROKER, id=7)),
        ("Coordinator", "ListGroups", coordinator_pb2.ListGroupsRequest()),
        ("Coordinator", "DescribeGroups", coordinator_pb2.DescribeGroupsRequest(group_ids=GROUPS)),
        ("Coordinator", "FetchOffsets", coordinator_pb2.FetchOffsetsRequest(group_id=GROUPS[0])),
        ("Coordinator", "FetchOffsets", coordinator_pb2.FetchOffsetsRequest(group_id=GROUPS[1])),
        (
            "TransactionCoordinator",
            "DescribeTransactions",
            transaction_pb2.DescribeTransactionsRequest(transactional_ids=["committed-id", "prepared-id"]),
        ),
        ("Broker", "Produce", produce),
        (
            "Coordinator",
            "CommitOffsets",
            coordinator_pb2.CommitOffsetsRequest(group_id=GROUPS[0], generation=-1, offsets=[commit]),
        ),
        ("Coordinator", "FetchOffsets", coordinator_pb2.FetchOffsetsRequest(group_id=GROUPS[0])),
        (
            "TransactionCoordinator",
            "DecidePrepared",
            transaction_pb2.DecidePreparedRequest(token=token, commit=True),
        ),
        (
            "TransactionCoordinator",
            "InitTransactionalId",
            transaction_pb2.InitTransactionalIdRequest(transactional_id="committed-id", transaction_timeout_ms=60_000),
        ),
    ]


def transaction_token(text: str) -> transaction_pb2.PreparedToken:
    """The token of a prepared transaction, as the wire has it."""
    from headrace.transactions import PreparedTransaction

    return PreparedTransaction.parse(text).message()


def _etcd_of(cluster: Cluster) -> str:
    argv = list(cluster.controller.argv)
    return argv[argv.index("--etcd") + 1]


def _backed_up(etcd: str, path: Path) -> None:
    directory = path.parent / "backups"
    argv = [sys.executable, "-m", "headrace_controller.backup", "--etcd", etcd, "--to", str(directory)]
    subprocess.run(argv, check=True, capture_output=True)
    (made,) = directory.iterdir()
    made.rename(path)
    directory.rmdir()


def _packed(directory: Path, path: Path) -> None:
    """The same files always give the same bytes."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for file in sorted(directory.rglob("*")):
            if not file.is_file() or file.name.startswith("LOG") or file.name == "LOCK":
                continue
            entry = tarfile.TarInfo(str(file.relative_to(directory)))
            entry.size = file.stat().st_size
            with file.open("rb") as content:
                archive.addfile(entry, content)
    path.write_bytes(lzma.compress(raw.getvalue(), preset=9))


if __name__ == "__main__":
    asyncio.run(recorded(Path(sys.argv[1])))
