"""What a query's checkpoint says: batches that were planned, those that are done, and where they end."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from headrace_spark.core.offsets import Positions


@dataclass(frozen=True)
class Checkpoint:
    """Of one query. Spark replaces its files by renaming, so what is there is whole."""

    directory: Path

    def planned(self) -> int:
        """The last batch in the log of offsets; -1: none."""
        return self._last("offsets")

    def done(self) -> int:
        """The last batch in the log of commits; -1: none."""
        return self._last("commits")

    def ends(self) -> dict[int, int]:
        """Where the last batch that is done ends, by partition of the one topic that is read."""
        return self._ends_of(self.done())

    def _ends_of(self, batch: int) -> dict[int, int]:
        lines = (self.directory / "offsets" / str(batch)).read_text().splitlines()
        return {tp.partition: end for tp, end in Positions.from_json(json.loads(lines[2])).next.items()}

    def forget_done(self) -> int:
        """
        Take the last batch that has rows out of the log of commits, and what was planned behind it, as if Spark had
        been killed before it wrote them; which batch. What a sink has written stays.
        """
        done = last = self.done()
        assert last >= 0, "a batch is done"
        while last > 0 and self._ends_of(last) == self._ends_of(last - 1):  # the end of a stream can be such a batch
            last -= 1
        for log, batches in (("commits", range(last, done + 1)), ("offsets", range(last + 1, self.planned() + 1))):
            for batch in batches:
                (self.directory / log / str(batch)).unlink()
                (self.directory / log / f".{batch}.crc").unlink(missing_ok=True)
        return last

    def _last(self, log: str) -> int:
        folder = self.directory / log
        return max((int(path.name) for path in folder.glob("*") if path.name.isdigit()), default=-1)
