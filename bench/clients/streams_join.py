"""Orders with their users, for bench/streams_workloads.py; topics come from the environment."""

import os

from headrace.streams import App, json

app = App(f"bench-{os.environ['SOURCE']}")
users = app.table(os.environ["TABLE"], value=json("name string, rate double"), key="user", name="users")
orders = app.stream(os.environ["SOURCE"], value=json("amount double, at bigint"), key="user")
orders.join(users, how="left").to(os.environ["TARGET"])
