"""The word count of bench/streams.py by Quix Streams, exactly once. It runs in an environment of its own."""

import sys

from quixstreams import Application

bootstrap, source, target, state_dir = sys.argv[1:5]
app = Application(
    broker_address=bootstrap,
    consumer_group=f"count-{source}",
    auto_offset_reset="earliest",
    processing_guarantee="exactly-once",
    commit_interval=0.1,
    state_dir=state_dir,
    loglevel="ERROR",
)


def count(row, state):
    n = state.get("n", 0) + 1
    state.set("n", n)
    return str(n)


lines = app.dataframe(app.topic(source, value_deserializer="string"))
words = lines.apply(lambda line: [{"word": word} for word in line.split(" ")], expand=True)
counts = words.group_by("word").apply(count, stateful=True)
counts.to_topic(app.topic(target, value_serializer="string", key_serializer="string"))
app.run()
