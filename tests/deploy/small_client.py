"""What a program does with the client and nothing else: run in an environment of its own by ``test_installed``."""

import sys
from importlib.util import find_spec

from headrace import AdminClient, Consumer, Producer
from headrace.errors import Rejected
from headrace.transactions import PreparedTransactions

AT, WITH_ARROW = sys.argv[1], sys.argv[2] == "arrow"
COUNT = 5_000


def read_all(topic: str, **settings: object) -> list[bytes | None]:
    with Consumer(topic, bootstrap_servers=AT, auto_offset_reset="earliest", **settings) as consumer:  # type: ignore[arg-type]  # names of settings
        return [record.value for record in consumer.read_to_end()]


def main() -> None:
    assert (find_spec("pyarrow") is not None) is WITH_ARROW
    with AdminClient(AT) as admin:
        for topic in ("plain", "paid"):
            admin.create_topic(topic, 1, 1, if_not_exists=True)
    values = [b"%d" % number * (number % 7) for number in range(COUNT)]
    keys = [None if number % 5 == 0 else b"k%d" % number for number in range(COUNT)]
    before = len(read_all("plain"))
    for codec in ("none", "zstd", "gzip", "lz4", "snappy"):
        with Producer(AT, compression_type=codec) as producer:  # type: ignore[arg-type]  # one of the codecs
            producer.send_many("plain", values, keys)
            for number in range(100):
                producer.send("plain", b"%d" % number, headers={"n": b"%d" % number})
    assert len(read_all("plain")) - before == 5 * (COUNT + 100)
    assert read_all("plain")[before : before + COUNT] == values

    with Producer(AT, transactional_id=f"small-{WITH_ARROW}") as producer:
        producer.init_transactions()
        with Consumer(
            "plain",
            bootstrap_servers=AT,
            group_id=f"small-{WITH_ARROW}",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        ) as consumer:
            records = []
            while not records:
                records = consumer.poll(timeout_ms=30_000)
            with producer.transaction(consumer):
                producer.send("paid", b"committed")
        try:
            with producer.transaction():
                producer.send("paid", b"aborted")
                raise KeyError("no")
        except KeyError:
            pass
    found = read_all("paid", isolation_level="read_committed")
    assert set(found) == {b"committed"}, found
    with PreparedTransactions(AT):
        pass

    with Producer(AT, value_serializer="json") as producer:
        producer.send("plain", {"a": [1, "é"]}).result(30)

    tables()
    print("small client: all done")


def tables() -> None:
    """With pyarrow they work; without it the error says how to get it."""
    if WITH_ARROW:
        import pyarrow as pa

        with Producer(AT) as producer:
            producer.send_table("plain", pa.table({"value": [b"1", b"2"]}))
        with Consumer("plain", bootstrap_servers=AT, auto_offset_reset="earliest") as consumer:
            assert consumer.poll_table(timeout_ms=30_000).num_columns > 0
        return
    for use in (use_send_table, use_poll_table):
        said = ""
        try:
            use()
        except Rejected as error:
            said = str(error)
        assert "pip install 'headrace[arrow]'" in said, said


def use_send_table() -> None:
    with Producer(AT) as producer:
        producer.send_table("plain", {})  # type: ignore[arg-type]  # whatever it is


def use_poll_table() -> None:
    with Consumer("plain", bootstrap_servers=AT, auto_offset_reset="earliest") as consumer:
        consumer.poll_table(timeout_ms=30_000)


if __name__ == "__main__":
    main()
