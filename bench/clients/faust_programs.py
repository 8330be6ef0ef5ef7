"""The programs of bench/streams_workloads.py by faust-streaming. It runs in an environment of its own."""

import os

import faust

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
)
source = app.topic(os.environ["SOURCE"], key_type=str, key_serializer="raw", value_serializer="json")
target = app.topic(os.environ["TARGET"], key_type=str, key_serializer="raw", value_serializer="json")
counts = app.Table("seen", default=int, partitions=6, options={"driver": "rocksdict"})


@app.agent(source)
async def function(orders):
    async for user, order in orders.items():
        counts[user] += 1
        await target.send(key=user, value={"user": order["user"], "seen": counts[user]})


if __name__ == "__main__":
    app.main()
