"""The demo's program of ``headrace.streams``: departures and their delays by carrier and hour."""

from headrace.streams import App, agg, json, tumbling

# The source has its months in the order 1, 10, 11, 12, 2, …: a window must wait for the rows of the whole year.
app = App("delays-by-carrier-hour")
departures = app.stream(
    "flights", value=json("dep_delay bigint, time_hour timestamp"), key="carrier", timestamp="time_hour"
)
by_hour = (
    departures.group_by("carrier")
    .window(tumbling("1h", grace="366d"), late="drop")
    .agg(departures=agg.count(), delays=agg.count("dep_delay"), minutes=agg.sum("dep_delay"), name="delays")
)
by_hour.to("delays-by-carrier-hour")
