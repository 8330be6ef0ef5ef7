"""Programs that the tests run in processes of their own; topics and names come from the environment."""

from __future__ import annotations

import os
import pathlib
import re
import time

from headrace.streams import App, agg, col, json, string, tumbling, value

LINES, WORDS, LATE = os.environ["LINES"], os.environ["WORDS"], os.environ.get("LATE", "")

counts = App(f"{LINES}-counts")
words = (
    counts.stream(LINES, value=string)
    .select(word=col("value").str.split(" "))
    .explode("word")
    .group_by("word", name="by-word")
    .agg(n=agg.count(), name="counts", emit="every")
)
words.to(WORDS)

windows = App(f"{LINES}-windows")
clicks = windows.stream(LINES, value=json("user string, at bigint"), timestamp="at")
clicks.group_by("user", name="by-user").window(tumbling(100, grace=50), late=LATE or "drop").agg(
    n=agg.count(), name="clicks", emit="final"
).to(WORDS)

numbered = App(f"{LINES}-numbered")


@numbered.stream(LINES, value=string, key="word").process(name="numbers", state={"seen": value(int)})
def number(row, state, context):
    """Each record of a word with its number."""
    state.seen += 1
    yield {"word": row["word"], "n": state.seen}


number.to(WORDS)

joined = App(f"{LINES}-joined")
orders = joined.stream(LINES, value=json("n bigint, at bigint"), key="user", timestamp="at")
payments = joined.stream(LATE or f"{LINES}-payments", value=json("n bigint, at bigint"), key="user", timestamp="at")
orders.select("user", "n").join(
    payments.select("user", paid="n"), within=(-20, 50), grace=1_000_000, how="outer", late="drop", name="near"
).to(WORDS)

letters = App(f"{LINES}-letters", on_error=LATE or "fail")
told = letters.stream(LINES, value=json("x bigint"), key="word").group_by("word")
told.agg(n=agg.count(), name="letters", emit="every").to(WORDS)

stuck = App(f"{LINES}-stuck")


def wait(row):
    """Never comes back from one record, the first time that it sees it."""
    seen = pathlib.Path(os.environ["HEADRACE_FAILPOINTS_DIR"]) / "stuck"
    if row["value"] == "wait" and not seen.exists():
        seen.touch()
        time.sleep(600)
    return {"word": row["value"], "n": 1}


stuck.stream(LINES, value=string).map(wait).to(WORDS)

plain = App(f"{LINES}-plain")
plain.stream(LINES, value=string).select(word="value").to(WORDS)

large = App(f"{LINES}-large", on_error=LATE or "fail")
rows = large.stream(LINES, value=string)
rows.select(word="value").to(WORDS)
rows.key_by("value").repartition(name="by-value").select(word="value").to(WORDS)

patterned = App(f"{LINES}-patterned")


def rang(name, state, context):
    """The number that the word had then."""
    yield {"word": context.key.decode(), "n": state.seen, "rang": True}


@patterned.stream(re.compile(f"{re.escape(LINES)}.*"), value=string, key="word", name="lines").process(
    name="words", state={"seen": value(int)}, on_timer=rang
)
def seen(row, state, context):
    """Each record of a word with its number, and once more after a second."""
    state.seen += 1
    if state.seen == 1:
        context.timer("rang", at=context.now + 1_000, clock="wall")
    yield {"word": row["word"], "n": state.seen}


seen.to(WORDS)

looked_up = App(f"{LINES}-looked-up")
numbers = looked_up.global_table(LATE or f"{LINES}-numbers", value=json("n bigint"), key="word")
looked_up.stream(LINES, value=string).join(numbers, on="value").select(word="value", n="n").to(WORDS)

daily = App(f"{LINES}-daily")
days = daily.stream(LINES, value=json("word string, at bigint"), timestamp="at").group_by("word", name="by-word")
days.window(tumbling("1d"), late="drop").agg(n=agg.count(), name="days").to(WORDS)
