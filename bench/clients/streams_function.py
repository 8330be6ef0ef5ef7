"""How many orders each user has made, by a function, for bench/streams_workloads.py."""

import os

from headrace.streams import App, json, value

app = App(f"bench-{os.environ['SOURCE']}")
orders = app.stream(os.environ["SOURCE"], value=json("amount double, at bigint"), key="user")


@orders.process(name="seen", state={"seen": value(int)})
def seen(order, state, context):
    state.seen += 1
    return {"user": order["user"], "seen": state.seen}


seen.to(os.environ["TARGET"])
