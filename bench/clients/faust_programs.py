"""The programs of bench/streams_workloads.py by faust-streaming. It runs in an environment of its own."""

import asyncio
import os

import faust

TUNED = {
    "producer_linger": 0.05,
    "producer_max_batch_size": 512 << 10,
    "stream_buffer_maxsize": 131_072,
    "broker_max_poll_records": 10_000,
}
app = faust.App(
    f"bench-{os.environ['SOURCE']}",
    broker=f"kafka://{os.environ['BOOTSTRAP']}",
    store="rocksdb://",
    datadir=os.environ["STATE"],
    topic_partitions=6,
    topic_replication_factor=1,
    processing_guarantee=os.environ["GUARANTEE"],
    broker_commit_interval=0.1,
    web_enabled=False,
    consumer_auto_offset_reset="earliest",
    **(TUNED if os.environ["TUNED"] == "1" else {}),
)


def topic(name, value_serializer="json", **more):
    return app.topic(name, key_type=str, key_serializer="raw", value_serializer=value_serializer, **more)


def table(name, **more):
    return app.Table(name, partitions=6, options={"driver": "rocksdict"}, **more)


target = topic(os.environ["TARGET"])


def words():
    lines = topic(os.environ["SOURCE"], "raw", value_type=str)
    words = topic(f"{os.environ['SOURCE']}-words", "raw", value_type=str, internal=True)
    counts = table("counts", default=int)
    changed = {}

    @app.agent(lines)
    async def split(lines):
        async for line in lines:
            for word in line.split(" "):
                await words.send(key=word, value=word)

    @app.agent(words)
    async def count(words):
        async for word in words:
            counts[word] += 1
            changed[word] = counts[word]

    @app.timer(0.1)  # as often as the others commit
    async def tell():
        counted = dict(changed)
        changed.clear()
        for word, n in counted.items():
            await target.send(key=word, value=n)


def windows():
    """Faust closes windows by the machine's clock and not by the records': so the function does it, one at a time."""
    orders = topic(os.environ["SOURCE"])
    totals = table("totals")
    opened = {}

    @app.agent(orders)
    async def add(orders):
        async for event in orders.events():
            partition, window = event.message.partition, int(event.message.timestamp) // 10
            before, users = opened.setdefault(partition, (window, set()))
            if window > before:
                for user in users:
                    total, n = totals.pop(user)
                    await target.send(key=user, value={"user": user, "total": total, "n": n})
                opened[partition] = (window, users := set())
            total, n = totals.get(event.key) or (0.0, 0)
            totals[event.key] = (total + event.value["amount"], n + 1)
            users.add(event.key)


def join():
    orders, changes = topic(os.environ["SOURCE"]), topic(os.environ["TABLE"])
    users = table("users")
    loaded = asyncio.Event()

    @app.agent(changes)
    async def load(changes):
        left = int(os.environ["TABLE_USERS"])
        async for user, row in changes.items():
            users[user] = row
            left -= 1
            if not left:
                loaded.set()

    @app.agent(orders)
    async def enrich(orders):
        async for user, order in orders.items():
            await loaded.wait()  # an order does not wait for its user by itself
            await target.send(key=user, value={**order, **(users.get(user) or {"name": None, "rate": None})})


def function():
    orders = topic(os.environ["SOURCE"])
    counts = table("seen", default=int)

    @app.agent(orders)
    async def seen(orders):
        async for user, order in orders.items():
            counts[user] += 1
            await target.send(key=user, value={"user": order["user"], "seen": counts[user]})


{"words": words, "windows": windows, "join": join, "function": function}[os.environ["PROGRAM"]]()

if __name__ == "__main__":
    app.main()
