"""
Scenario of streams: a word count of the chart's ``streamsApps``, whose workers come, go, are killed and get another
version of their program while lines keep coming. Its output has every number of every word exactly once.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from .kube import wait_until
from .life import Ask, client, own
from .results import Result
from .stage import Stage

WORDS: Final = 200
RUN_S: Final = 900.0
"""The longest that the load runs."""
TAKEN_S: Final = 180.0
"""The longest until the output goes on after a change."""
_APP: Final = {
    "name": "words",
    "app": "words.py",
    "standbys": 1,
    "access": [{"role": "consumer", "name": "lines"}, {"role": "producer", "name": "counts"}],
}
_PROGRAM: Final = """\
from headrace.streams import App, agg, col, string

app = App("words")
words = app.stream("lines", value=string).select(word=col("value").str.split(" ")).explode("word")
words.group_by("word", name="by-word").agg(n=agg.count(), name="counts", emit="every").to("counts")
"""
_NEXT: Final = _PROGRAM.replace("words.group_by", 'words.filter(col("word") != "no such word").group_by')


def counted(stage: Stage, result: Result) -> None:
    """Under load 1, 3 and 1 workers, another version, a pod that is killed: nothing is lost or counted twice."""
    with own(stage, "streams") as here, client_of(here) as ask:
        _apply(here, 1, _PROGRAM)
        result.figure("1 worker: ready", here.release.wait_rolled_out())
        with _lines(ask) as load:
            _goes_on(here, result, "the first counts")
            _apply(here, 3, _PROGRAM)
            result.figure("1 → 3 workers: all ready", here.release.wait_rolled_out())
            _goes_on(here, result, "1 → 3 workers", 3)
            _apply(here, 3, _NEXT)
            result.figure("another version: all ready", here.release.wait_rolled_out())
            _goes_on(here, result, "another version", 3)
            pod = f"{here.release.stateful('streams')}-words-1"
            uid = here.uid(pod)
            here.kube.delete("pod", pod, "--grace-period=0", "--force", "--wait=false")
            result.figure("a pod is killed: ready again", here.wait_replaced(pod, uid))
            _goes_on(here, result, "a pod is killed", 3)
            _apply(here, 1, _NEXT)
            result.figure("3 → 1 workers: all ready", here.release.wait_rolled_out())
            _goes_on(here, result, "3 → 1 workers")
        _ask_for_state(here, result, load)
        _ask_admin(here, result, load, ask)
        judge(result, load, json.loads(ask(_READ.format(rows=sum(load.values())), seconds=300)))


@contextmanager
def client_of(here: Stage) -> Iterator[Ask]:
    """The release, its topics, and a client beside it."""
    here.release.install()
    here.release.wait_rolled_out()
    for topic in ("lines", "counts"):
        here.release.cli("topic", "create", topic, "-p", "6")
    with client(here) as ask:
        yield ask


def _apply(here: Stage, replicas: int, program: str) -> None:
    app = {**_APP, "replicas": replicas, "programs": {"words.py": program}}
    here.say(f"{replicas} workers")
    here.release.upgrade({}, "--set-json", f"streamsApps={json.dumps([app])}")


@contextmanager
def _lines(ask: Ask) -> Iterator[dict[str, int]]:
    """Lines are sent inside of the block; after it: how often each word was acknowledged."""
    told: list[str] = []
    thread = threading.Thread(
        target=lambda: told.append(ask(_LOAD.format(words=WORDS, seconds=RUN_S), seconds=RUN_S + 60))
    )
    thread.start()
    acknowledged: dict[str, int] = {}
    try:
        yield acknowledged
    finally:
        ask("open('/tmp/stop', 'w').close()")
        thread.join()
    assert told, "the load failed; its error stands above"
    acknowledged.update(json.loads(told[0]))


def _goes_on(here: Stage, result: Result, what: str, workers: int = 1) -> None:
    """
    Wait until so many workers have tasks, and lines that are sent after that have been read in each partition, in
    transactions that were committed.
    """
    seconds = wait_until(f"{what}: {workers} workers have tasks", lambda: len(_owners(here)) == workers, TAKEN_S)
    result.figure(f"{what}: all workers have tasks", seconds)
    ends: dict[int, int] = {}

    def look() -> bool:
        lag = here.release.cli_json("group", "lag", "words", "--topic", "lines", "--no-seconds")["partitions"]
        if not ends:
            ends.update({one["partition"]: one["end_offset"] for one in lag})
        return all((one["committed_offset"] or 0) > ends[one["partition"]] for one in lag)

    seconds = wait_until(f"{what}: lines of then are read", look, TAKEN_S)
    here.say(f"{what}: goes on after {seconds:.1f} s")
    result.figure(f"{what}: lines of then are read", seconds)


def _owners(here: Stage) -> set[str]:
    """The workers that have tasks."""
    items = here.release.cli_json("group", "describe", "words")["items"]
    return {one["owner"] for one in items} - {""}


def _ask_for_state(here: Stage, result: Result, acknowledged: dict[str, int]) -> None:
    """A worker is asked for the count of a word: it is that of what was sent, once all is counted."""
    word, count = next(iter(acknowledged.items()))
    pod = f"{here.release.stateful('streams')}-words-0"

    def look() -> bool:
        found = json.loads(
            here.kube.execute(pod, "headrace", "streams", "state", "words", "counts", word, "-o", "json")
        )
        return [row["n"] for row in found["rows"]] == [count]

    result.figure("the last line is in the state", wait_until(f"{word} is there {count} times", look, TAKEN_S))


def _ask_admin(here: Stage, result: Result, acknowledged: dict[str, int], ask: Ask) -> None:
    """REST of the admin service knows every count too: it asks the worker, which network policies have to allow."""
    word, count = next(iter(acknowledged.items()))
    told = json.loads(ask(_REST.format(at=here.release.rest, path=f"streams/words/stores/counts/keys/{word}")))
    if [row["n"] for row in told["rows"]] != [count]:
        result.problems.append(f"the admin service says {told} of {word}, which was sent {count} times")


def judge(result: Result, acknowledged: dict[str, int], numbers: dict[str, list[int]]) -> None:
    """A word that was sent n times has the numbers 1 to n, each once."""
    result.acknowledged += sum(acknowledged.values())
    result.read += sum(map(len, numbers.values()))
    for word, count in acknowledged.items():
        read, wanted = numbers.get(word, []), set(range(1, count + 1))
        result.anomalies["lost-write"] += len(wanted - set(read))
        result.anomalies["duplicate"] += len(read) - len(wanted & set(read))
    result.anomalies += Counter()  # leaves out those that are 0
    if strange := sorted(numbers.keys() - acknowledged.keys()):
        result.problems.append(f"words that nobody sent: {strange}")


_LOAD: Final = """
import collections, json, os, random, time
import headrace
chance, counts, sent, end = random.Random(1), collections.Counter(), [], time.monotonic() + {seconds}
with headrace.Producer() as producer:
    while not os.path.exists("/tmp/stop") and time.monotonic() < end:
        for _ in range(20):
            words = [f"w{{chance.randrange({words})}}" for _ in range(8)]
            counts.update(words)
            sent.append(producer.send("lines", " ".join(words).encode(), key=str(len(sent)).encode()))
        time.sleep(0.1)
    for delivery in sent:
        delivery.result(120)
print(json.dumps(counts))
"""
_REST: Final = """
import os, ssl, urllib.request
trust = ssl.create_default_context(cafile=os.environ["HEADRACE_CA"])
with open(os.environ["HEADRACE_API_KEY_FILE"]) as file:
    shown = {{"Authorization": "Bearer " + file.read().strip()}}
request = urllib.request.Request("https://{at}/v1/{path}", headers=shown)
print(urllib.request.urlopen(request, context=trust, timeout=60).read().decode())
"""
_READ: Final = """
import collections, json, time
import headrace
numbers = collections.defaultdict(list)
count, deadline, quiet = 0, time.monotonic() + 240, 0
with headrace.Consumer("counts", auto_offset_reset="earliest", isolation_level="read_committed") as consumer:
    while time.monotonic() < deadline and (count < {rows} or quiet < 3):
        records = consumer.poll(timeout_ms=1_000)
        quiet = 0 if records else quiet + 1
        for record in records:
            row = json.loads(record.value)
            numbers[row["word"]].append(row["n"])
            count += 1
print(json.dumps(numbers))
"""
