"""Two sub-topologies, for the cost of event time between their tasks; topics come from the environment."""

import os

from headrace.streams import App, agg, json, tumbling

app = App(f"bench-{os.environ['SOURCE']}")
orders = app.stream(os.environ["SOURCE"], value=json("amount double, at bigint"), key="user")
windows = orders.group_by("at", name="by-time").window(tumbling("10s"), late="drop")
windows.agg(total=agg.sum("amount"), n=agg.count(), name="totals", emit="final").to(os.environ["TARGET"])
