"""
The programs that are run, what they are fed, and what one naive pass over the committed records says that they write.

Each is a function of its input alone: of whatever batches, commits and restarts there were nothing is seen.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from random import Random
from typing import Any, Final, Protocol

from narwhals.stable.v2 import col

from headrace_streams.core.formats import json
from headrace_streams.dsl import agg
from headrace_streams.dsl.app import App
from headrace_streams.dsl.windows import tumbling

LINES: Final = "lines"
OUT: Final = "out"
LATE: Final = "late"
STORE: Final = "counts"
KEYS: Final = 8
SIZE_MS: Final = 10_000
GRACE_MS: Final = 5_000
BEGIN_MS: Final = 1_000_000

Line = tuple[bytes, dict[str, Any]]
"""Key and value of a record."""
Written = dict[tuple[str, str], list[Any]]
"""By topic and key: what was written, in order."""


@dataclass
class Expected:
    """What a program has done when it has read everything."""

    written: Written = field(default_factory=lambda: defaultdict(list))
    state: Counter[Any] = field(default_factory=Counter)


class Program(Protocol):
    """See the module's text."""

    def app(self) -> App:
        """What runs; made anew for each process."""
        ...

    def line(self, random: Random, partition: int) -> Line:
        """One more record for a partition."""
        ...

    def last(self) -> Line | None:
        """What each partition gets in the end."""
        ...

    def expected(self, logs: Sequence[Sequence[Line]]) -> Expected:
        """Of the committed records of each partition."""
        ...

    def read(self, topic: str, row: Mapping[str, Any]) -> tuple[str, Any]:
        """A row that was written: its key, and what else it says."""
        ...

    def kept(self, row: Mapping[str, Any]) -> tuple[Any, int]:
        """A row of the state: its key, and its count."""
        ...


class Words:
    """Words are counted; each that comes is a row with the new count. They go through a repartition topic."""

    def app(self) -> App:
        app = App("words")
        lines = app.stream(LINES, value=json("words array<string>"))
        words = lines.explode("words").rename(words="word").group_by("word", name="by-word")
        words.agg(n=agg.count(), name=STORE, emit="every").to(OUT)
        return app

    def line(self, random: Random, partition: int) -> Line:
        words = [f"w{random.randrange(KEYS)}" for _ in range(random.randint(1, 4))]
        return b"%d" % random.randrange(100), {"words": words}

    def last(self) -> Line | None:
        return None

    def expected(self, logs: Sequence[Sequence[Line]]) -> Expected:
        found = Expected()
        found.state = Counter(word for log in logs for _, row in log for word in row["words"])
        found.written = {(OUT, word): list(range(1, count + 1)) for word, count in found.state.items()}
        return found

    def read(self, topic: str, row: Mapping[str, Any]) -> tuple[str, Any]:
        return row["word"], row["n"]

    def kept(self, row: Mapping[str, Any]) -> tuple[Any, int]:
        return row["word"], row["n"]


class Windows:
    """Rows are counted by key and window, a row when it closes; late ones go to a topic. Nothing is repartitioned."""

    disorder_ms = 8 * GRACE_MS

    def __init__(self) -> None:
        self._now_ms = BEGIN_MS

    def app(self) -> App:
        app = App("windows")
        rows = app.stream(LINES, value=json("at bigint"), key="k", timestamp="at")
        windows = rows.group_by("k").window(tumbling(SIZE_MS, grace=GRACE_MS), late=LATE)
        windows.agg(n=agg.count(), name=STORE, emit="final").to(OUT)
        return app

    def line(self, random: Random, partition: int) -> Line:
        return b"%d-%d" % (partition, random.randrange(KEYS)), {"at": self._time(random)}

    def _time(self, random: Random) -> int:
        self._now_ms += random.randrange(2_000)
        return self._now_ms - random.choice((0, 0, random.randrange(self.disorder_ms)))

    def last(self) -> Line | None:
        return None

    def expected(self, logs: Sequence[Sequence[Line]]) -> Expected:
        found = Expected()
        for log in logs:
            self._pass((key.decode(), row["at"]) for key, row in log).merge_into(found)
        return found

    def _pass(self, rows: Iterable[tuple[str, int]]) -> _Pass:
        one = _Pass()
        for key, at in rows:
            one.take(key, at)
        return one

    def read(self, topic: str, row: Mapping[str, Any]) -> tuple[str, Any]:
        start = _ms(row["window_start"])
        return row["k"], (start, row["at"] if topic == LATE else row["n"])

    def kept(self, row: Mapping[str, Any]) -> tuple[Any, int]:
        return (row["k"], _ms(row["window_start"])), row["n"]


class _Pass:
    """Over one partition."""

    def __init__(self) -> None:
        self.watermark = 0
        self.open: Counter[tuple[int, str]] = Counter()
        self.written: list[tuple[str, str, Any]] = []

    def take(self, key: str, at: int) -> None:
        """One more row."""
        self.watermark = max(self.watermark, at)
        start = at - at % SIZE_MS
        if self._closed(start):
            self.written.append((LATE, key, (start, at)))
        else:
            self.open[start, key] += 1
        for window in sorted(window for window in self.open if self._closed(window[0])):
            self.written.append((OUT, window[1], (window[0], self.open.pop(window))))

    def _closed(self, start: int) -> bool:
        return start + SIZE_MS + GRACE_MS <= self.watermark

    def merge_into(self, found: Expected) -> None:
        """To what other partitions say."""
        for topic, key, said in self.written:
            found.written[topic, key].append(said)
        found.state.update({(key, start): count for (start, key), count in self.open.items()})


class Moved(Windows):
    """
    The same by another key, so through a repartition topic: event time crosses it. No row is out of order by more
    than the grace, so none is late, however partitions meet.
    """

    disorder_ms = GRACE_MS

    def app(self) -> App:
        app = App("moved")
        rows = app.stream(LINES, value=json("k string, at bigint"), timestamp="at")
        windows = rows.group_by("k", name="by-k").window(tumbling(SIZE_MS, grace=GRACE_MS), late=LATE)
        windows.agg(n=agg.count(), name=STORE, emit="final").to(OUT)
        return app

    def line(self, random: Random, partition: int) -> Line:
        return b"%d" % random.randrange(100), {"k": f"k{random.randrange(KEYS)}", "at": self._time(random)}

    def last(self) -> Line:
        """All windows before it close."""
        return b"", {"k": "last", "at": self._now_ms + 10 * SIZE_MS}

    def expected(self, logs: Sequence[Sequence[Line]]) -> Expected:
        found = Expected()
        rows = sorted((row["at"], row["k"]) for log in logs for _, row in log)
        self._pass((key, at) for at, key in rows).merge_into(found)
        return found


class Tables:
    """
    The newest row of each key, where its number is not a multiple of 7, with the number of the row that it refers to:
    the state is what a pass over all rows ends with. Questions and answers go between tasks. Each row is written too.
    """

    def app(self) -> App:
        app = App("tables")
        lines = app.stream(LINES, value=json("k string, other string, n bigint"))
        lines.to(OUT)
        table = lines.key_by("k").repartition(name="by-k").to_table(name="rows").filter(col("n") % 7 != 0)
        table.join(table.select(m="n"), on="other", how="left", name=STORE)
        return app

    def line(self, random: Random, partition: int) -> Line:
        other = random.choice((None, f"{random.randrange(2)}-{random.randrange(KEYS)}"))
        return b"", {"k": f"{partition}-{random.randrange(KEYS)}", "other": other, "n": random.randrange(1_000)}

    def last(self) -> Line | None:
        return None

    def expected(self, logs: Sequence[Sequence[Line]]) -> Expected:
        found = Expected()
        rows = {}
        for key, row in ((row["k"], row) for log in logs for _, row in log):
            rows[key] = row
            found.written[OUT, key].append((row["other"], row["n"]))
        numbers = {key: row["n"] for key, row in rows.items() if row["n"] % 7}
        found.state.update(
            {(key, rows[key]["other"], n, numbers.get(rows[key]["other"])): 1 for key, n in numbers.items()}
        )
        return found

    def read(self, topic: str, row: Mapping[str, Any]) -> tuple[str, Any]:
        return row["k"], (row["other"], row["n"])

    def kept(self, row: Mapping[str, Any]) -> tuple[Any, int]:
        return (row["k"], row["other"], row["n"], row["m"]), 1


class Copies:
    """Each row is written as it came. Tasks keep nothing but positions: no changelog shuts out who had them before."""

    def __init__(self) -> None:
        self._number = 0

    def app(self) -> App:
        app = App("copies")
        app.stream(LINES, value=json("n bigint"), key="k").to(OUT)
        return app

    def line(self, random: Random, partition: int) -> Line:
        self._number += 1
        return b"%d-%d" % (partition, random.randrange(KEYS)), {"n": self._number}

    def last(self) -> Line | None:
        return None

    def expected(self, logs: Sequence[Sequence[Line]]) -> Expected:
        found = Expected()
        for key, row in (line for log in logs for line in log):
            found.written[OUT, key.decode()].append(row["n"])
        return found

    def read(self, topic: str, row: Mapping[str, Any]) -> tuple[str, Any]:
        return row["k"], row["n"]

    def kept(self, row: Mapping[str, Any]) -> tuple[Any, int]:
        raise AssertionError("nothing is kept")


PROGRAMS: Final[Mapping[str, type[Program]]] = {
    "words": Words,
    "windows": Windows,
    "moved": Moved,
    "tables": Tables,
    "copies": Copies,
}


def compare(expected: Written, written: Written, *, repeats: bool = False) -> list[str]:
    """
    What differs: rows that are missing, rows that are there too often or should not be, another order.

    Args:
        repeats: rows may come again, and then in another order.
    """
    found = []
    for topic, key in dict.fromkeys([*expected, *written]):
        wanted, there = expected.get((topic, key), []), written.get((topic, key), [])
        lost, doubled = Counter(wanted) - Counter(there), Counter(there) - Counter(wanted)
        if repeats:
            doubled = Counter({row: n for row, n in doubled.items() if row not in wanted})
        found += [f"lost: {topic} lacks {row} of {key}" for row in lost]
        found += [f"doubled: {topic} has {row} of {key} {there.count(row)} times" for row in doubled]
        if not (lost or doubled or repeats) and wanted != there:
            found.append(f"order: {topic} has {there} of {key}, not {wanted}")
    return found


def _ms(text: str | datetime) -> int:
    at = datetime.fromisoformat(text) if isinstance(text, str) else text
    return round(at.timestamp() * 1_000)
