"""``headrace bench``: what this client and this cluster do, measured. For ratios against others see ``make bench``."""

from __future__ import annotations

import hashlib
import itertools
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace_cli.commanding import command
from headrace_cli.exits import CommandFailed, ExitCode
from headrace_cli.output import Output, format_count
from headrace_cli.session import DEFAULT_DATA_DIR, Session
from headrace_common.core.ids import PARTITIONS_PER_TOPIC_MAX

HELP = "Measure produce, consume and end-to-end times"
FLUSH_SECONDS = 300
READ_SECONDS = 30
SAMPLES_MAX = 10_000
MANY = 1_000
WARM_UP = 300
"""Round trips that are not measured, at most; of few a quarter."""

Records = Annotated[int, typer.Option("--records", "-n", min=1, help="How many")]
Size = Annotated[int, typer.Option("--size", min=1, max=1_000_000, help="Bytes of a value; random, so incompressible")]
Partitions = Annotated[
    int,
    typer.Option("--partitions", min=1, max=PARTITIONS_PER_TOPIC_MAX, help="Partitions of the topic that is created"),
]
Topic = Annotated[str | None, typer.Option("--topic", help="Use this topic; else one is created and deleted")]
Acks = Annotated[str, typer.Option(help="all, 1 or 0")]
Linger = Annotated[float, typer.Option("--linger", min=0, help="How long a batch waits for more records, in ms")]
Batch = Annotated[int | None, typer.Option("--batch", min=1, help="Largest batch, in bytes; else the client's default")]
Compression = Annotated[str, typer.Option(help="none, gzip, snappy, lz4 or zstd")]
FlushInfo = Annotated[bool, typer.Option("--flush-info", help="Add the flush policy of the local cluster")]


def register(app: typer.Typer) -> None:
    """Add the commands to ``headrace bench``."""
    command(app)(produce)
    command(app)(consume)
    command(app)(e2e)


def produce(
    session: Session,
    *,
    records: Records = 1_000_000,
    size: Size = 100,
    partitions: Partitions = 6,
    topic: Topic = None,
    mode: Annotated[str, typer.Option(help="send: one call each; many: send_many of 1,000")] = "send",
    acks: Acks = "all",
    linger: Linger = 5,
    batch: Batch = None,
    compression: Compression = "none",
    flush_info: FlushInfo = False,
) -> None:
    """Write records as fast as it goes: rate, client CPU per record, time from send to acknowledgement."""
    if mode not in {"send", "many"}:
        raise typer.BadParameter("--mode takes send or many")
    settings = {"acks": acks, "linger_ms": linger, "compression_type": compression}
    if batch is not None:
        settings["batch_size"] = batch
    with bench_topic(session, topic, partitions) as name:
        result = write(session, name, records, size, mode, settings)
    _report(session, "produce", name, result, flush_info)


def consume(
    session: Session,
    *,
    records: Records = 1_000_000,
    size: Size = 100,
    partitions: Partitions = 6,
    topic: Topic = None,
    mode: Annotated[str, typer.Option(help="iterate, poll, or table (Arrow)")] = "iterate",
    compression: Compression = "none",
    flush_info: FlushInfo = False,
) -> None:
    """Read records as fast as it goes; they are written first, unless --topic has them."""
    if mode not in {"iterate", "poll", "table"}:
        raise typer.BadParameter("--mode takes iterate, poll or table")
    with bench_topic(session, topic, partitions) as name:
        if topic is None:
            session.say(f"writing {format_count(records, 'record')} first ...")
            write(session, name, records, size, "many", {"compression_type": compression})
        result = read(session, name, records, mode)
    _report(session, "consume", name, result, flush_info)


def e2e(
    session: Session,
    *,
    records: Records = 3_000,
    size: Size = 100,
    partitions: Partitions = 1,
    topic: Topic = None,
    acks: Acks = "all",
    flush_info: FlushInfo = False,
) -> None:
    """One record at a time: from send to acknowledgement, and from send to being read."""
    import asyncio
    from importlib.util import find_spec

    async def run(name: str) -> dict[str, Any]:
        return await round_trips(session.cluster, name, records, size, acks)

    with bench_topic(session, topic, partitions) as name:
        factory = None
        if find_spec("uvloop") is not None:
            import uvloop

            factory = uvloop.new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            result = runner.run(run(name))
    _report(session, "e2e", name, result, flush_info)


def load_libraries() -> None:
    """What the clients load when they first need it (and what that loads, pandas where it is installed), at once."""
    import pyarrow as pa

    pa.array([b""], pa.binary())


@contextmanager
def bench_topic(session: Session, given: str | None, partitions: int) -> Iterator[str]:
    """The topic that was given, or one that is there for this run only."""
    load_libraries()
    if given is not None:
        yield given
        return
    name = f"bench-{datetime.now(UTC):%Y%m%d%H%M%S}-{os.getpid()}"
    with session.admin() as admin:
        admin.create_topic(name, partitions, 1)
        try:
            yield name
        finally:
            admin.delete_topic(name)


def write(session: Session, topic: str, records: int, size: int, mode: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Write, and say how it went."""
    samples: list[float] = []
    values = _values(size)
    with session.producer(**settings) as producer:
        producer.send(topic, values[0]).result(READ_SECONDS)
        begun, cpu = time.perf_counter(), time.process_time()
        if mode == "many":
            _send_many(producer, topic, values, records)
        else:
            _send_each(producer, topic, values, records, samples)
        handed_over = time.perf_counter() - begun
        producer.flush(FLUSH_SECONDS)
        seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
    return _rates(records, records * size, seconds, cpu) | {
        "handed_over_seconds": round(handed_over, 3),
        "ack_ms": percentiles(samples),
    }


def _send_each(producer: Any, topic: str, values: list[bytes], records: int, samples: list[float]) -> None:
    send, tick, every = producer.send, time.perf_counter, max(records // SAMPLES_MAX, 1)
    cycle = itertools.cycle(values)
    left = records
    while left:
        for value in itertools.islice(cycle, min(every, left) - 1):
            send(topic, value)
        sent_at = tick()
        delivery = send(topic, next(cycle))
        delivery.add_done_callback(lambda _, sent_at=sent_at: samples.append(tick() - sent_at))
        left -= min(every, left)


def _send_many(producer: Any, topic: str, values: list[bytes], records: int) -> None:
    chunk = list(itertools.islice(itertools.cycle(values), MANY))
    for _ in range(records // MANY):
        producer.send_many(topic, chunk)
    if records % MANY:
        producer.send_many(topic, chunk[: records % MANY])


def read(session: Session, topic: str, records: int, mode: str) -> dict[str, Any]:
    """Read from the beginning, and say how it went. The clock starts with the first record."""
    with session.consumer(topic, auto_offset_reset="earliest") as consumer:
        got = len(consumer.poll(READ_SECONDS * 1000, max_records=1))
        if not got:
            raise CommandFailed(f"{topic} gave nothing in {READ_SECONDS} s", ExitCode.TIMED_OUT)
        size, first = 0, got
        begun, cpu = time.perf_counter(), time.process_time()
        while got < records:
            if mode == "iterate":
                for record in itertools.islice(consumer, records - got):
                    size += len(record.value)
                    got += 1
                break
            if mode == "table":
                table = consumer.poll_table(READ_SECONDS * 1000, max_records=100_000)
                count, size = table.num_rows, size + table.nbytes
            else:
                batch = consumer.poll(READ_SECONDS * 1000, max_records=5_000)
                count, size = len(batch), size + sum(len(r.value) for r in batch)
            if not count:
                raise CommandFailed(f"{topic} gave {got:,} of {records:,} records", ExitCode.TIMED_OUT)
            got += count
        seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
    return _rates(got - first, size, seconds, cpu)


async def round_trips(bootstrap: Sequence[str], topic: str, records: int, size: int, acks: str) -> dict[str, Any]:
    """One record in flight at a time."""
    from headrace import aio

    value, tick = _values(size)[0], time.perf_counter
    acknowledged: list[float] = []
    arrived: list[float] = []
    settings: dict[str, Any] = {"acks": acks, "linger_ms": 0}  # as typed; the producer checks it
    async with (
        aio.Producer(bootstrap, **settings) as producer,
        aio.Consumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer,
    ):
        begun, cpu = tick(), time.process_time()
        for _ in range(records):
            sent_at = tick()
            await (await producer.send(topic, value))
            acknowledged.append(tick() - sent_at)
            while not await consumer.poll(1000):
                pass
            arrived.append(tick() - sent_at)
        seconds, cpu = tick() - begun, time.process_time() - cpu
    warm_up = min(WARM_UP, records // 4)
    latencies = {"ack_ms": percentiles(acknowledged[warm_up:]), "read_ms": percentiles(arrived[warm_up:])}
    return _rates(records, records * size, seconds, cpu) | latencies


def percentiles(seconds: list[float]) -> dict[str, float]:
    """In ms."""
    from headrace_cli.percentiles import percentiles_ms

    return percentiles_ms(seconds)


def _values(size: int) -> list[bytes]:
    """A thousand values that no codec makes smaller, the same in every run."""
    return [hashlib.shake_128(b"%d" % number).digest(size) for number in range(MANY)]


def _rates(records: int, size: int, seconds: float, cpu_seconds: float) -> dict[str, Any]:
    return {
        "records": records,
        "seconds": round(seconds, 3),
        "records_per_second": round(records / seconds) if seconds else 0,
        "megabytes_per_second": round(size / seconds / 1e6, 2) if seconds else 0.0,
        "client_cpu_us_per_record": round(cpu_seconds / records * 1e6, 3) if records else 0.0,
    }


def _report(session: Session, what: str, topic: str, result: dict[str, Any], flush_info: bool) -> None:
    data = {"bench": what, "topic": topic, **result}
    if flush_info:
        data["flush"] = _flush_policy(session.cluster)
    if session.output is not Output.TABLE:
        session.show(data)
        return
    latencies = {
        name: f"{', '.join(f'{p} {ms:.3f}' for p, ms in data.pop(name).items())}"
        for name in list(data)
        if name.endswith("_ms") and data[name]
    }
    shown = {name: f"{value:,}" if isinstance(value, int) else value for name, value in data.items() if value != {}}
    session.show(shown | latencies)


def _flush_policy(bootstrap: Sequence[str]) -> str:
    """Of the local cluster, if that is the one measured."""
    from headrace_cli.local.failures import LocalClusterFailed
    from headrace_cli.local.state import DataDir

    try:
        state = DataDir.at(Path(DEFAULT_DATA_DIR)).read()
    except LocalClusterFailed:
        state = None  # whatever is wrong there, what was measured is told
    if state is not None and set(bootstrap) & set(state.bootstrap_servers):
        return state.options.flush
    return "not known: not the local cluster of this directory"
