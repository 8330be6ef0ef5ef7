"""A filter that passes everything, for bench/streams.py; topics come from the environment."""

import os

from headrace.streams import App, bytes, col

app = App(f"bench-{os.environ['SOURCE']}")
app.stream(os.environ["SOURCE"], value=bytes).filter(~col("value").is_null()).to(os.environ["TARGET"], value=bytes)
