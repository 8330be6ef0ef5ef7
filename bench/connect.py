"""
Connectors of ours: changes and rows of a PostgreSQL, rows into it, lakes, files, and a copy of another cluster. Each
runs as `headrace connect run` does, with its defaults unless said.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import orjson
from tests.integration.connect.shop import Shop, started_shop

from bench.connect_sides import Ends, Rate, command, connector, measure_growth
from bench.headrace_side import HeadraceSide
from bench.rows import Row, compare, interleaved, percentile
from bench.sizes import sized
from bench.streams_workloads import Records, fill
from headrace import AdminClient, Consumer, Producer, TopicPartition
from headrace.errors import GroupNotFound

CHANGES, SNAPSHOT, UPSERTS, LAKE, LINES, COPIED = 500_000, 2_000_000, 300_000, 2_000_000, 2_000_000, 2_000_000
TRANSACTION = 1_000
"""Changes of one."""
EACH_S, FOR_S = 100, 10
JSON: Final = {"key.converter": "json", "value.converter": "json"}
PAD: Final = "x" * 80
_numbers = itertools.count(1)


def fresh(word: str) -> str:
    """A name that nothing has yet."""
    return f"{word}{next(_numbers)}"


@dataclass(frozen=True, slots=True)
class Changes:
    """A table, and who captures it."""

    shop: Shop
    table: str

    @staticmethod
    @contextmanager
    def of(shop: Shop) -> Iterator[Changes]:
        """A new one; the table and all slots are dropped in the end."""
        table = fresh("orders")
        shop.do(f"create table {table} (id bigint primary key, at double precision, pad text)")
        try:
            yield Changes(shop, table)
        finally:
            shop.drop_slots()
            shop.do(f"drop table {table}")

    def config(self, **more: str) -> dict[str, str]:
        return self.shop.config(self.table, f"public[.]{self.table}", **JSON, **more)

    @property
    def topic(self) -> str:
        return f"{self.table}.public.{self.table}"

    def insert(self, count: int) -> None:
        """Rows of 100 bytes, 1,000 in each transaction."""
        for first in range(0, count, TRANSACTION):
            rows = f"generate_series({first + 1}, {min(first + TRANSACTION, count)})"
            self.shop.do(f"insert into {self.table} select n, 0, '{PAD}' from {rows} n")

    def insert_evenly(self, each_s: int, seconds: int) -> None:
        """One row in each transaction, with the time when it was begun; ids from 0 down."""
        begun = time.perf_counter()
        for number in range(each_s * seconds):
            time.sleep(max(0.0, begun + number / each_s - time.perf_counter()))
            self.shop.session.execute(
                f"insert into {self.table} values (%s, %s, %s)".encode(), (-number, time.perf_counter(), PAD)
            )


def changes(runs: int) -> list[Row]:
    """Inserts that wait in the WAL while the connector is away, then how fast they come; exactly once."""
    count = sized(CHANGES, 20_000)
    with _sides() as (cluster, shop, root):
        found = [run_changes(cluster, shop, root, count) for _ in range(runs)]
    return rates(f"postgres-cdc, {count:,} inserts of 100 B", found, "≥ 40,000")


def run_changes(cluster: HeadraceSide, shop: Shop, root: Path, count: int) -> Rate:
    """One run."""
    with Changes.of(shop) as made, Ends.of(cluster, topic(cluster, made.topic)) as ends:
        config = made.config(**{"snapshot.mode": "no_data"})
        with connector(cluster, root, config):
            await_slot(made)
            made.insert_evenly(EACH_S, 1)
            until(lambda: ends() >= EACH_S)
        begun = ends()
        made.insert(count)
        with connector(cluster, root, config) as worker:
            return measure_growth(lambda: ends() - begun, count, [worker.pid], worker.check)


def delay(runs: int) -> list[Row]:
    """From before a row is inserted until a reader has its change, at 100 a second."""
    guarantees = {"exactly once": ("true", {0.5: "≤ 60", 0.99: "≤ 250"}), "at least once": ("false", {0.5: "≤ 15"})}

    with _sides() as (cluster, shop, root):
        found = interleaved(runs, *(partial(run_delays, cluster, shop, root, said) for said, _ in guarantees.values()))
    return [
        compare(
            f"postgres-cdc, delay at {EACH_S}/s, {name}, p{share * 100:.0f}",
            "ms",
            [percentile(times, share) for times in of_name],
            target=goals.get(share, ""),
        )
        for (name, (_, goals)), of_name in zip(guarantees.items(), found, strict=True)
        for share in (0.5, 0.99)
    ]


def run_delays(cluster: HeadraceSide, shop: Shop, root: Path, exactly_once: str) -> list[float]:
    """One run."""
    with Changes.of(shop) as made:
        config = made.config(**{"snapshot.mode": "no_data", "exactly.once": exactly_once})
        topic(cluster, made.topic)
        with connector(cluster, root, config), reading(cluster, made.topic) as poll:
            await_slot(made)
            return delays(made, poll)


def delays(made: Changes, poll: Callable[[], list[Any]]) -> list[float]:
    """In ms, sorted, of rows that are inserted meanwhile; those of the first second are left out."""
    seconds = sized(FOR_S, 2)
    inserting = threading.Thread(target=made.insert_evenly, args=(EACH_S, seconds))
    inserting.start()
    took: list[float] = []
    seen = 0
    deadline = time.monotonic() + seconds + 60
    while seen < EACH_S * seconds:
        for value in poll():
            row = orjson.loads(value)
            row = row.get("payload", row)["after"]
            seen += 1
            if row["id"] <= -EACH_S:
                took.append((time.perf_counter() - row["at"]) * 1e3)
        if time.monotonic() > deadline:
            raise TimeoutError(f"{seen} of {EACH_S * seconds} changes came")
    inserting.join()
    return sorted(took)


def snapshot(runs: int) -> list[Row]:
    """Rows that are in a table when the connector is made."""
    count = sized(SNAPSHOT, 20_000)

    def one() -> Rate:
        with Changes.of(shop) as made, Ends.of(cluster, topic(cluster, made.topic)) as ends:
            made.insert(count)
            with connector(cluster, root, made.config()) as worker:
                return measure_growth(ends, count, [worker.pid], worker.check)

    with _sides() as (cluster, shop, root):
        found = [one() for _ in range(runs)]
    return rates(f"postgres-cdc, snapshot of {count:,} rows of 100 B", found, "≥ 200,000")


def upserts(runs: int) -> list[Row]:
    """Rows with new keys, JSON with and without a schema in each record."""
    count = sized(UPSERTS, 10_000)

    with _sides() as (cluster, shop, root):
        described, bare = (keyed_rows(count, schemas=schemas) for schemas in (True, False))
        with_schema, without = interleaved(
            runs, *(partial(run_upserts, cluster, shop, root, records) for records in (described, bare))
        )
    name = f"sql-sink into PostgreSQL, {count:,} upserts"
    return [*rates(name, without, "≥ 60,000"), *rates(f"{name}, a schema in each record", with_schema, "")]


def run_upserts(cluster: HeadraceSide, shop: Shop, root: Path, records: Records) -> Rate:
    """One run."""
    with Rows.into(shop) as made:
        fill(cluster, topic(cluster, made.name), records)
        with connector(cluster, root, made.config(shop.url, schemas=b"payload" in records.values[0])) as worker:
            return measure_growth(made.count, len(records.values), [worker.pid], worker.check)


@dataclass(frozen=True, slots=True)
class Rows:
    """A table, and the topic of its name."""

    shop: Shop
    name: str

    @staticmethod
    @contextmanager
    def into(shop: Shop) -> Iterator[Rows]:
        """An empty table; it is dropped in the end."""
        name = fresh("rows")
        shop.do(f"create table {name} (id bigint primary key, name text, amount double precision, at bigint)")
        try:
            yield Rows(shop, name)
        finally:
            shop.do(f"drop table {name}")

    def config(self, url: str, *, schemas: bool) -> dict[str, str]:
        return {
            "name": self.name,
            "connector.class": "sql-sink",
            "topics": self.name,
            "connection.url": url,
            "insert.mode": "upsert",
            "pk.mode": "record_key",
            **JSON,
            **{f"{of}.converter.schemas.enable": str(schemas).lower() for of in ("key", "value")},
        }

    def count(self) -> int:
        """Rows that are committed."""
        return int(self.shop.rows(f"select count(*) from {self.name}")[0][0])


_FIELDS: Final = {"id": "int64", "name": "string", "amount": "double", "at": "int64"}


def keyed_rows(count: int, *, schemas: bool) -> Records:
    """JSON of about 80 bytes, with Kafka Connect's schema beside it or without."""
    key, value = b"%b", b"%b"
    if schemas:
        key, value = _with_schema("id"), _with_schema(*_FIELDS)
    rows = ((number, number % 9_973, number % 400 / 4, 1_700_000_000_000 + number) for number in range(count))
    values = [value % (b'{"id":%d,"name":"customer number %d","amount":%.2f,"at":%d}' % row) for row in rows]
    return Records(values, [key % (b'{"id":%d}' % number) for number in range(count)])


def _with_schema(*names: str) -> bytes:
    fields = [{"field": name, "type": _FIELDS[name], "optional": False} for name in names]
    schema = json.dumps({"type": "struct", "fields": fields, "optional": False})
    return f'{{"schema": {schema}, "payload": %b}}'.encode()


def lakes(runs: int) -> list[Row]:
    """JSON of about 80 bytes into Parquet and into Delta, in a directory; a commit after 100,000 rows or 2 s."""
    count = sized(LAKE, 20_000)
    goals = {"parquet": "≥ 300,000", "delta": "≥ 250,000"}

    def one(form: str) -> Rate:
        name = fresh("lake")
        config = {"name": name, "connector.class": "lake-sink", "topics": source, "path": str(root / name)}
        config |= {"format": form, "flush.rows": str(sized(100_000, 2_000)), "flush.interval.ms": "2000", **JSON}
        with connector(cluster, root, config) as worker, AdminClient(cluster.bootstrap) as admin:
            return measure_growth(lambda: done(admin, name, source, count), count, [worker.pid], worker.check)

    with _sides() as (cluster, _, root):
        source = cluster.topic(1)
        fill(cluster, source, keyed_rows(count, schemas=False))
        found = interleaved(runs, *(partial(one, form) for form in goals))
    return [
        row
        for (form, goal), of_form in zip(goals.items(), found, strict=True)
        for row in rates(f"lake-sink, {form}, {count:,} rows of JSON", of_form, goal)
    ]


def done(admin: AdminClient, name: str, source: str, count: int) -> int:
    """How many records of a topic of one partition a sink has committed."""
    try:
        lag = admin.group_lag(f"connect-{name}", ages=False).get(TopicPartition(source, 0))
    except GroupNotFound:
        return 0
    return 0 if lag is None or lag.lag is None or lag.committed_offset is None else count - lag.lag


def previews(runs: int) -> list[Row]:
    """`headrace connect preview` from its start to its end, of a table and of a file: ten records, the first time."""
    count = sized(SNAPSHOT, 20_000)

    def one(config: Mapping[str, str]) -> float:
        asked = [*command("preview", cluster, root, config), "--records", "10", "-o", "json"]
        begun = time.perf_counter()
        told = subprocess.run(asked, stdout=subprocess.PIPE, check=True, timeout=60).stdout
        took = time.perf_counter() - begun
        shown = len(json.loads(told)["records"])
        if shown != 10:
            raise ValueError(f"preview of {config['name']} shows {shown} records")
        return took

    with _sides() as (cluster, shop, root), Changes.of(shop) as made:
        made.insert(count)
        (root / "lines.txt").write_text("".join(f"{number:019d} {PAD}\n" for number in range(count)))
        file = {"name": "lines", "connector.class": "files", "topic": "lines", "path": str(root), "format": "lines"}
        found = interleaved(runs, partial(one, made.config()), partial(one, file | {"pattern": "lines.txt"}))
    return [
        compare(f"connect preview, {what} of {count:,} rows", "s", took, target="≤ 3")
        for what, took in zip(("a table", "a file"), found, strict=True)
    ]


def lines(runs: int) -> list[Row]:
    """Lines of 100 bytes from one file."""
    count = sized(LINES, 50_000)

    def one() -> Rate:
        name = topic(cluster, fresh("lines"))
        config = {"name": name, "connector.class": "files", "topic": name, "path": str(folder), "format": "lines"}
        with Ends.of(cluster, name) as ends, connector(cluster, root, config) as worker:
            return measure_growth(ends, count, [worker.pid], worker.check)

    with _sides() as (cluster, _, root), tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "lines.txt").write_text("".join(f"{number:019d} {PAD}\n" for number in range(count)))
        found = [one() for _ in range(runs)]
    return rates(f"files, {count:,} lines of 100 B", found, "≥ 400,000")


def copies(runs: int) -> list[Row]:
    """Records of 100 bytes of another cluster, beside a loop of the SDK that reads and writes in transactions."""
    count = sized(COPIED, 20_000)

    def mirrored() -> float:
        name = fresh("copy")
        config = {"name": name, "connector.class": "mirror", "source.cluster.alias": "eu", "topic.prefix": f"{name}."}
        config |= {"source.cluster.bootstrap.servers": other.bootstrap, "topics": source}
        target = topic(cluster, f"{name}.{source}")
        with Ends.of(cluster, target) as ends, connector(cluster, root, config) as worker:
            return measure_growth(ends, count, [worker.pid], worker.check).rows_s

    def plain() -> float:
        target = cluster.topic(1)
        with (
            Ends.of(cluster, target) as ends,
            Copy(other.bootstrap, cluster.bootstrap, source, target) as copy,
        ):
            return measure_growth(ends, count, [], copy.check).rows_s

    with _sides() as (cluster, _, root), HeadraceSide.running(flush="os") as other:
        source = other.topic(1)
        fill(other, source, Records([b"%019d %b" % (number, PAD.encode()) for number in range(count)]))
        mine, bare = interleaved(runs, mirrored, plain)
    return [compare(f"mirror, {count:,} records of 100 B / a plain copy", "rows/s", mine, bare, target="≥ 0.7")]


class Copy:
    """A thread that copies a topic of one partition, 10,000 records in each transaction."""

    def __init__(self, source: str, target: str, topic: str, into: str) -> None:
        self._servers, self._topics = (source, target), (topic, into)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._error: Exception | None = None

    def __enter__(self) -> Copy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join(60)

    def check(self) -> None:
        """
        Raises:
            Exception: what ended it.
        """
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        (source, target), (name, into) = self._servers, self._topics
        try:
            with (
                Consumer(
                    name, bootstrap_servers=source, auto_offset_reset="earliest", isolation_level="read_committed"
                ) as consumer,
                Producer(target, transactional_id=into) as producer,
            ):
                producer.init_transactions()
                while not self._ending.is_set():
                    tables = consumer.poll_batches(100, 10_000)
                    if not tables:
                        continue
                    with producer.transaction():
                        for one in tables:
                            producer.send_many(into, one.table["value"].to_pylist())
        except Exception as error:
            self._error = error


def topic(cluster: HeadraceSide, name: str) -> str:
    """Make a topic of one partition."""
    with AdminClient(cluster.bootstrap) as admin:
        admin.create_topic(name, 1, 1)
    return name


def until(good: Callable[[], bool], seconds: float = 120.0) -> None:
    """
    Raises:
        TimeoutError: it was not so in time.
    """
    deadline = time.monotonic() + seconds
    while not good():
        if time.monotonic() > deadline:
            raise TimeoutError("the connector did not begin")
        time.sleep(0.05)


def await_slot(made: Changes, slot: str = "") -> None:
    """Until somebody reads the connector's slot."""
    name = slot or f"headrace_{made.table}"
    asked = f"select 1 from pg_replication_slots where slot_name = '{name}' and active"
    until(lambda: bool(made.shop.rows(asked)))


@contextmanager
def reading(cluster: HeadraceSide, name: str) -> Iterator[Callable[[], list[Any]]]:
    """Values that are committed, as they come."""
    with Consumer(
        name, bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        yield lambda: [record.value for record in consumer.poll(100)]


@contextmanager
def _sides() -> Iterator[tuple[HeadraceSide, Shop, Path]]:
    with (
        HeadraceSide.running(flush="os") as cluster,
        started_shop() as shop,
        tempfile.TemporaryDirectory(prefix="bench-connect-") as root,
    ):
        yield cluster, shop, Path(root)


def rates(name: str, found: list[Rate], target: str) -> list[Row]:
    """A row of the rate and one of the CPU."""
    return [
        compare(f"{name}: rate", "rows/s", [one.rows_s for one in found], target=target),
        compare(f"{name}: connector's CPU", "µs/record", [one.cpu_us for one in found]),
    ]


SUITES: Final[Mapping[str, Callable[[int], list[Row]]]] = {
    "connect-changes": changes,
    "connect-delay": delay,
    "connect-snapshot": snapshot,
    "connect-upserts": upserts,
    "connect-lakes": lakes,
    "connect-previews": previews,
    "connect-lines": lines,
    "connect-copies": copies,
}
