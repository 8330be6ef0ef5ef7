"""
What the processes of the load write down, one line an event, and how it is read back for the checker.

Lines: ``S process partition value outcome offset began_ns time_ns``, ``P process time_ns partition:offset:value ...``,
``A process``, ``E process time_ns text``. Times are of the machine's monotonic clock, which all processes share.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from headrace_verify.checker import Assign, Key, Operation, Outcome, Point, Poll, Send

FLUSH_LINES = 200


class Writer:
    """One file of one process."""

    def __init__(self, path: Path, process: int) -> None:
        self._file: TextIO = path.open("a", encoding="utf-8")
        self._process = process
        self._since = 0

    def sent(self, partition: int, value: int, outcome: Outcome, offset: int, began_ns: int) -> None:
        """A send has ended."""
        now = time.monotonic_ns()
        self._line(f"S {self._process} {partition} {value} {outcome.value} {offset} {began_ns} {now}")

    def polled(self, points: Iterable[tuple[int, int, int]]) -> None:
        """Records were handed out: partition, offset, value of each."""
        self._line(f"P {self._process} {time.monotonic_ns()} " + " ".join(f"{p}:{o}:{v}" for p, o, v in points))

    def assigned(self) -> None:
        """The process chose positions anew."""
        self._line(f"A {self._process}")

    def failed(self, text: str) -> None:
        """An error that an application saw."""
        self._line(f"E {self._process} {time.monotonic_ns()} " + " ".join(text.split()))

    def _line(self, text: str) -> None:
        self._file.write(text + "\n")
        self._since += 1
        if self._since >= FLUSH_LINES:
            self.flush()

    def flush(self) -> None:
        """Hand all to the operating system."""
        self._since = 0
        self._file.flush()

    def close(self) -> None:
        """No more."""
        self._file.close()


@dataclass(slots=True)
class History:
    """All files of a run."""

    operations: list[Operation] = field(default_factory=list)
    acks: dict[int, list[int]] = field(default_factory=dict)
    """Partition → times of acknowledgements, ascending."""
    errors: list[str] = field(default_factory=list)
    """What applications saw: a failed send, a poll that raised."""


def read_histories(paths: Sequence[Path], topic: str) -> History:
    """Operations of each process stay in their order; those of different processes are not ordered."""
    history = History()
    keys: dict[str, Key] = {}
    for path in paths:
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                _read_line(history, line.split(), keys, topic)
    for times in history.acks.values():
        times.sort()
    return history


def _read_line(history: History, words: list[str], keys: dict[str, Key], topic: str) -> None:
    process = int(words[1])
    match words[0]:
        case "S":
            _, _, partition, value, outcome, offset, began, at = words
            key = keys.setdefault(partition, f"{topic}-{partition}")
            ok = outcome == Outcome.OK.value
            history.operations.append(
                Send(process, Outcome(outcome), key, int(value), int(offset) if ok else None, int(at), int(began))
            )
            if ok:
                history.acks.setdefault(int(partition), []).append(int(at))
        case "P":
            history.operations.append(
                Poll(process, tuple(_point(word, keys, topic) for word in words[3:]), int(words[2]))
            )
        case "A":
            history.operations.append(Assign(process))
        case "E":
            history.errors.append(f"process {process}: {' '.join(words[3:])}")


def _point(word: str, keys: dict[str, Key], topic: str) -> Point:
    partition, offset, value = word.split(":")
    return keys.setdefault(partition, f"{topic}-{partition}"), int(offset), int(value)
