"""Sums and counts of ten seconds each, for bench/streams_workloads.py; topics come from the environment."""

import os

from headrace.streams import App, agg, json, tumbling

app = App(f"bench-{os.environ['SOURCE']}")
orders = app.stream(os.environ["SOURCE"], value=json("amount double, at bigint"), key="user")
windows = orders.group_by("user").window(tumbling("10s"), late="drop")
windows.agg(total=agg.sum("amount"), n=agg.count(), name="totals", emit="final").to(os.environ["TARGET"])
