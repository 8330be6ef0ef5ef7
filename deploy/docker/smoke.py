"""
Run inside an image by ``smoke.sh``: what the image must be able to do, and fails where it was trimmed too far.

    python smoke.py imports headrace_broker headrace_cli      # every module of these packages
    python smoke.py round-trip broker:9292 http://admin:8080  # records, transactions and groups through a cluster
    python smoke.py words broker:9292                         # lines for smoke_words.py, and what it counts
    python smoke.py lines broker:9292                         # what the connector of smoke.yaml reads
"""

import importlib
import json
import pkgutil
import sys
import urllib.request

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
FOR_TESTS = ("testing",)
OF_EXTRAS = ("headrace_cli.spark.entry", "headrace_cli.local.", "headrace_cli.demo.")


def imports(packages: list[str]) -> None:
    """Import each module, but those for tests and those that need an extra."""
    count = 0
    for package in packages:
        names = [package]
        found = importlib.import_module(package)
        names += [m.name for m in pkgutil.walk_packages(getattr(found, "__path__", ()), f"{package}.", onerror=print)]
        for name in names:
            parts = name.split(".")
            if "__main__" in parts or any(part in FOR_TESTS for part in parts) or name.startswith(OF_EXTRAS):
                continue
            importlib.import_module(name)
            count += 1
    print(f"{count} modules imported")


def rows_and_columns() -> None:
    """Batches of both formats, with each codec, written and read again."""
    from headrace_common.core.batch import Codec, RecordColumns, build_batch, build_row_batch, decode_batch

    keys = [f"key-{n}".encode() for n in range(500)]
    values = [b"value of a record " * 4 + str(n).encode() for n in range(500)]
    for codec in Codec:
        for build in (build_batch, build_row_batch):
            columns = RecordColumns(keys=keys, values=values, timestamps_ms=1)
            decoded = decode_batch(build(columns, codec=codec))
            assert (decoded.keys(), decoded.values()) == (keys, values), f"{build.__name__} with {codec.name}"
    print(f"batches of rows and of columns with {len(Codec)} codecs")


def round_trip(bootstrap: str, rest: str) -> None:
    """Every codec, a transaction, a group, and REST."""
    from headrace import AdminClient, Consumer, Producer

    values = [b"value of a record " * 4 + str(n).encode() for n in range(2_000)]
    with AdminClient(bootstrap) as admin:
        for codec in CODECS:
            topic = f"smoke-{codec}"
            admin.create_topic(topic, partitions=2, replication_factor=1)
            with Producer(bootstrap, compression_type=codec) as producer:
                sent = producer.send_many(topic, values, keys=[str(n).encode() for n in range(2_000)])
                assert len(sent.result(60)) == len(values)
            read = read_all(Consumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest"), len(values))
            assert sorted(read) == sorted(values), f"{topic}: what is read is not what was written"
        admin.create_topic("smoke-transactions", partitions=1, replication_factor=1)
    with Producer(bootstrap, transactional_id="smoke") as producer, producer.transaction():
        for value in values[:10]:
            producer.send("smoke-transactions", value)
    settings = {"group_id": "smoke", "auto_offset_reset": "earliest", "isolation_level": "read_committed"}
    assert read_all(Consumer("smoke-transactions", bootstrap_servers=bootstrap, **settings), 10) == values[:10], (
        "a committed transaction"
    )
    with urllib.request.urlopen(f"{rest}/v1/topics", timeout=10) as answer:
        assert "smoke-zstd" in json.dumps(json.load(answer)), "REST lists the topics"
    print(f"{len(CODECS)} codecs, a transaction, a group and REST")


def words(bootstrap: str) -> None:
    """Lines go in, and the counts of their words come out."""
    from headrace import AdminClient, Consumer, Producer

    with AdminClient(bootstrap) as admin:
        for topic in ("smoke-lines", "smoke-counts"):
            admin.create_topic(topic, partitions=2, replication_factor=1)
    with Producer(bootstrap) as producer:
        for _ in range(100):
            producer.send("smoke-lines", b"to be or not to be")
    counts: dict[str, int] = {}
    settings = {"auto_offset_reset": "earliest", "isolation_level": "read_committed"}
    with Consumer("smoke-counts", bootstrap_servers=bootstrap, group_id="smoke-counts", **settings) as consumer:
        while counts != {"to": 200, "be": 200, "or": 100, "not": 100}:
            records = consumer.poll(timeout_ms=60_000)
            assert records, f"no more counts within 60 s: {counts}"
            counts |= {row["word"]: row["n"] for row in (json.loads(record.value) for record in records)}
    print("a program of streams counts words")


def lines(bootstrap: str) -> None:
    """Lines of a file are in the topic, once."""
    from headrace import Consumer

    settings = {"auto_offset_reset": "earliest", "isolation_level": "read_committed", "metadata_max_age_ms": 1_000}
    read = read_all(Consumer("smoke-files", bootstrap_servers=bootstrap, group_id="smoke-files", **settings), 2)
    assert [json.loads(value)["value"] for value in read] == ["one", "two"], read
    print("a connector reads a file into a topic")


def read_all(consumer, count: int) -> list[bytes]:
    """The first ``count`` values."""
    read: list[bytes] = []
    with consumer:
        while len(read) < count:
            records = consumer.poll(timeout_ms=30_000)
            assert records, f"{len(read)} of {count} records within 30 s"
            read += [record.value for record in records]
    return read


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["imports", *packages]:
            imports(packages)
        case ["batches"]:
            rows_and_columns()
        case ["round-trip", bootstrap, rest]:
            round_trip(bootstrap, rest)
        case ["words", bootstrap]:
            words(bootstrap)
        case ["lines", bootstrap]:
            lines(bootstrap)
        case _:
            sys.exit(__doc__)
