"""
Transactions: one record each, a thousand each, consume-transform-produce, readers of committed records, and units of
prepared transactions; beside the same load without, and (``peer_*``) beside confluent-kafka on a real Kafka.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import headrace
from bench.clients.values import random_values
from bench.headrace_side import HeadraceSide
from bench.kafka_side import KafkaSide, run_client
from bench.rows import Row, compare, interleaved
from bench.sizes import sized

OURS, THEIRS = "bench.clients.headrace_transactions", "bench.clients.kafka_transactions"
PARTITIONS = 6
UNIT_PARTITIONS, UNIT_TRANSACTIONS = 24, 200

Run = dict[str, float]


def _ours(side: HeadraceSide, test: str, **options: Any) -> Run:
    return run_client(OURS, test, bootstrap=side.bootstrap, **options)


def _theirs(side: KafkaSide, test: str, **options: Any) -> Run:
    return run_client(THEIRS, test, bootstrap=side.bootstrap, **options)


def _column(runs: list[Run], name: str) -> list[float]:
    return [run[name] for run in runs]


# --- beside the same load without ---------------------------------------------------------------------------------


def throughput(runs: int) -> list[Row]:
    """Transactions of 1,000 records beside the same records without: in one stream, and flushed each 1,000."""
    rounds = sized(1_000, 20)
    with HeadraceSide.running() as side:

        def run(**options: Any) -> Run:
            topic = side.topic(PARTITIONS)
            return _ours(side, "write", topic=topic, per=1_000, transactions=rounds, **options)

        inside, stream, flushed = interleaved(runs, run, lambda: run(plain=True), lambda: run(plain=True, flush=True))
    ours = _column(inside, "rec_s")
    return [
        compare("txn 1,000 records / one stream without", "records/s", ours, _column(stream, "rec_s"), target="≥ 0.75"),
        compare("txn 1,000 records / flushed each 1,000", "records/s", ours, _column(flushed, "rec_s")),
    ]


def reading(runs: int) -> list[Row]:
    """The same topic, written in transactions of 300 records of which every tenth was aborted, read both ways."""
    with HeadraceSide.running() as side:
        topic = side.topic(PARTITIONS)
        records = _written(side, topic, sized(3_000, 100), 300)
        committed, uncommitted = interleaved(
            runs,
            lambda: _ours(side, "consume", topic=topic, records=records[0], mode="read_committed"),
            lambda: _ours(side, "consume", topic=topic, records=records[1], mode="read_uncommitted"),
        )
    return [
        compare(
            "read_committed / read_uncommitted",
            "records/s",
            _column(committed, "rec_s"),
            _column(uncommitted, "rec_s"),
            target="≥ 0.90",
            note="every tenth transaction aborted; records handed out",
        )
    ]


def _written(side: HeadraceSide, topic: str, transactions: int, per: int) -> tuple[int, int]:
    """Records committed, and written in all."""
    values = random_values(100)
    committed = 0
    with headrace.Producer(side.bootstrap, transactional_id=f"bench-{uuid.uuid4().hex[:8]}") as producer:
        for number in range(transactions):
            producer.begin_transaction()
            producer.send_many(topic, values[:per])
            if number % 10:
                producer.commit_transaction()
                committed += per
            else:
                producer.flush()
                producer.abort_transaction()
    return committed, transactions * per


def units(runs: int) -> list[Row]:
    """200 prepared transactions committed by one call: until it is answered, and until all can be read."""
    rows = []
    with HeadraceSide.running() as side:
        for touched in (1, UNIT_PARTITIONS):
            found = [_unit(side, touched, sized(UNIT_TRANSACTIONS, 10)) for _ in range(runs)]
            name = f"unit of {UNIT_TRANSACTIONS}, {UNIT_PARTITIONS} partitions, {touched} each"
            answered, readable = [f[0] for f in found], [f[1] for f in found]
            rows.append(compare(f"{name}: answered", "ms", answered, target="≤ 150"))
            rows.append(compare(f"{name}: all readable", "ms", readable))
    return rows


def _unit(side: HeadraceSide, touched: int, transactions: int) -> tuple[float, float]:
    topic, owner = side.topic(UNIT_PARTITIONS), f"unit-{uuid.uuid4().hex[:8]}"
    with headrace.UnitOwner(side.bootstrap, owner) as unit:
        unit.init()
        tokens = []
        for number in range(transactions):
            settings: dict[str, Any] = {"transactional_id": f"{owner}/{number}", "owner_epoch": unit.epoch}
            with headrace.Producer(side.bootstrap, linger_ms=0, **settings) as producer:
                producer.begin_transaction()
                for n in range(touched):
                    producer.send(topic, b"x" * 100, partition=(number + n) % UNIT_PARTITIONS)
                tokens.append(producer.prepare_transaction())
        began = time.perf_counter()
        unit.commit(0, tokens)
        answered = time.perf_counter()
    got, wanted = 0, transactions * touched
    settings = {"isolation_level": "read_committed", "auto_offset_reset": "earliest", "fetch_max_wait_ms": 10}
    with headrace.Consumer(topic, bootstrap_servers=side.bootstrap, **settings) as consumer:
        while got < wanted:
            got += len(consumer.poll(1_000, max_records=10_000))
    readable = time.perf_counter()
    return (answered - began) * 1_000, (readable - began) * 1_000


# --- beside a real Kafka ------------------------------------------------------------------------------------------


def peer_single(runs: int) -> list[Row]:
    """One record a transaction, one broker and three."""
    rows: list[Row] = []
    for brokers, transactions in ((1, sized(1_000, 20)), (3, sized(300, 10))):
        with HeadraceSide.running(brokers=brokers) as ours, KafkaSide.running(brokers=brokers) as kafka:
            both = {"per": 1, "transactions": transactions}
            _one_each(ours, brokers, both)
            sides = partial(_one_each, ours, brokers, both), partial(_one_each, kafka, brokers, both)
            mine, theirs = interleaved(runs, *sides)
        name = f"RF {brokers}: one record a transaction / confluent"
        figures = _column(mine, "rounds_s"), _column(theirs, "rounds_s")
        rows.append(compare(name, "transactions/s", *figures, target="≥ 1.5"))
        rows.append(compare(f"{name}: p50", "ms", _column(mine, "p50_ms"), _column(theirs, "p50_ms")))
        rows.append(compare(f"{name}: p99", "ms", _column(mine, "p99_ms"), _column(theirs, "p99_ms"), target="≤ 0.5"))
    return rows


def _one_each(side: HeadraceSide | KafkaSide, replicas: int, options: dict[str, Any]) -> Run:
    topic = side.topic(PARTITIONS, replicas)
    if isinstance(side, HeadraceSide):
        return _ours(side, "write", topic=topic, **options)
    return _theirs(side, "write", topic=topic, **options)


def peer_transform(runs: int) -> list[Row]:
    """Consume, transform, produce: 1,000 and 10,000 records a commit; ours with its defaults, theirs tuned."""
    rows: list[Row] = []
    records = sized(1_000_000, 30_000)
    with HeadraceSide.running() as ours, KafkaSide.running() as kafka:
        source, theirs_source = ours.topic(PARTITIONS), kafka.topic(PARTITIONS)
        ours.client("produce", topic=source, records=records, mode="many")
        kafka.client("produce", topic=theirs_source, records=records, mode="batch", tuned=True)

        def mine(per: int, mode: str) -> Run:
            to = ours.topic(PARTITIONS)
            return _ours(ours, "transform", topic=source, to=to, records=records, per=per, mode=mode)

        def theirs(per: int, tuned: bool) -> Run:
            to = kafka.topic(PARTITIONS)
            return _theirs(kafka, "transform", topic=theirs_source, to=to, records=records, per=per, tuned=tuned)

        for per in (1_000, 10_000):
            sides: list[Callable[[], Run]] = [
                lambda per=per: mine(per, "record"),
                lambda per=per: mine(per, "table"),
                lambda per=per: theirs(per, tuned=True),
                lambda per=per: theirs(per, tuned=False),
            ]
            record, table, tuned, default = (_column(found, "rec_s") for found in interleaved(runs, *sides))
            name = f"consume-transform-produce, {per:,} a commit"
            rows.append(compare(f"{name}: records / confluent tuned", "records/s", record, tuned, target="≥ 1.0"))
            rows.append(compare(f"{name}: tables / confluent tuned", "records/s", table, tuned, target="≥ 2.0"))
            rows.append(compare(f"{name}: records / confluent", "records/s", record, default))
    return rows
