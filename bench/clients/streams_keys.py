"""Sums and counts by key, for bench/streams_workloads.py; topics come from the environment."""

import os

from headrace.streams import App, agg, json

app = App(f"bench-{os.environ['SOURCE']}")
orders = app.stream(os.environ["SOURCE"], value=json("amount double, at bigint"), key="user")
orders.group_by("user").agg(total=agg.sum("amount"), n=agg.count(), name="totals").to(os.environ["TARGET"])
