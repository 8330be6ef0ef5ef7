"""The programs of bench/streams_workloads.py by Quix Streams, exactly once. It runs in an environment of its own."""

import os
from datetime import timedelta

from quixstreams import Application
from quixstreams.dataframe.windows import Count, Sum
from quixstreams.state.rocksdb import RocksDBOptions

TUNED = {
    "consumer_extra_config": {"fetch.message.max.bytes": 4 << 20, "queued.max.messages.kbytes": 256 << 10},
    "producer_extra_config": {"linger.ms": 50, "batch.size": 4 << 20, "compression.type": "lz4"},
    "rocksdb_options": RocksDBOptions(write_buffer_size=256 << 20, target_file_size_base=256 << 20),
}
app = Application(
    broker_address=os.environ["BOOTSTRAP"],
    consumer_group=f"bench-{os.environ['SOURCE']}",
    auto_offset_reset="earliest",
    processing_guarantee="exactly-once",
    commit_interval=0.1,
    state_dir=os.environ["STATE"],
    loglevel="ERROR",
    **(TUNED if os.environ["TUNED"] == "1" else {}),
)


def words():
    def count(row, state):
        n = state.get("n", 0) + 1
        state.set("n", n)
        return str(n)

    lines = app.dataframe(app.topic(os.environ["SOURCE"], value_deserializer="string"))
    words = lines.apply(lambda line: [{"word": word} for word in line.split(" ")], expand=True)
    counts = words.group_by("word").apply(count, stateful=True)
    counts.to_topic(app.topic(os.environ["TARGET"], value_serializer="string", key_serializer="string"))


def windows():
    orders = app.dataframe(app.topic(os.environ["SOURCE"], value_deserializer="json", key_deserializer="string"))
    windows = orders.tumbling_window(timedelta(seconds=10)).agg(total=Sum("amount"), n=Count())
    totals = windows.final(closing_strategy="partition")
    totals.to_topic(app.topic(os.environ["TARGET"], value_serializer="json", key_serializer="string"))


def join():
    def merge(order, user):
        user = user or {"name": None, "rate": None}
        return {**order, **user}

    def frame(topic):
        return app.dataframe(app.topic(os.environ[topic], value_deserializer="json", key_deserializer="string"))

    joined = frame("SOURCE").join_asof(frame("TABLE"), how="left", on_merge=merge)
    joined.to_topic(app.topic(os.environ["TARGET"], value_serializer="json", key_serializer="string"))


def function():
    def seen(order, state):
        n = state.get("seen", 0) + 1
        state.set("seen", n)
        return {"user": order["user"], "seen": n}

    orders = app.dataframe(app.topic(os.environ["SOURCE"], value_deserializer="json", key_deserializer="string"))
    counts = orders.apply(seen, stateful=True)
    counts.to_topic(app.topic(os.environ["TARGET"], value_serializer="json", key_serializer="string"))


{"words": words, "windows": windows, "join": join, "function": function}[os.environ["PROGRAM"]]()
app.run()
