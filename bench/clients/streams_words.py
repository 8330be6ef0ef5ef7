"""The word count of bench/streams.py; topics come from the environment."""

import os

from headrace.streams import App, agg, col, string

app = App(f"bench-{os.environ['SOURCE']}")
lines = app.stream(os.environ["SOURCE"], value=string)
words = lines.select(word=col("value").str.split(" ")).explode("word")
words.group_by("word", name="by-word").agg(n=agg.count(), name="counts").to(os.environ["TARGET"])
