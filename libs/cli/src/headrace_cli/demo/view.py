"""How the demo looks: a live table at a terminal, a line every two seconds elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headrace_cli.demo.tally import Tally
from headrace_cli.rates import Rate

NOTES_SHOWN: Final = 6
LINE_SECONDS: Final = 2.0
REFRESH_SECONDS: Final = 0.2
BAR_WIDTH: Final = 72


@dataclass(slots=True)
class Progress:
    """What the run knows at one moment."""

    total: int
    tally: Tally
    sent: int = 0
    acknowledged: int = 0
    already_there: int = 0
    """Records that an earlier run left."""
    notes: deque[str] = field(default_factory=lambda: deque(maxlen=NOTES_SHOWN))
    produce_rate: Rate = field(default_factory=Rate)
    consume_rate: Rate = field(default_factory=Rate)

    @property
    def in_topic(self) -> int:
        """Records that are safe."""
        return self.already_there + self.acknowledged

    @property
    def lag(self) -> int:
        """Safe, and not read yet."""
        return max(self.in_topic - self.tally.records, 0)


class View:
    """Draws a ``Progress``; use it as a context manager."""

    def __init__(self, console: Console, names: Mapping[str, str]) -> None:
        self._console = console
        self._names = names
        self._live = Live(console=console, auto_refresh=False, transient=False) if console.is_terminal else None
        self._drawn = 0.0

    def __enter__(self) -> View:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def note(self, progress: Progress, text: str) -> None:
        """Something happened that people should see."""
        progress.notes.append(f"{time.strftime('%H:%M:%S')}  {text}")
        if self._live is None:
            self._console.print(f"  ! {text}", markup=False, highlight=False)

    def draw(self, progress: Progress, *, last: bool = False) -> None:
        """Show it, if the last time is long enough ago."""
        now = time.monotonic()
        if not last and now - self._drawn < (REFRESH_SECONDS if self._live else LINE_SECONDS):
            return
        self._drawn = now
        sent_rate = progress.produce_rate.update(now, progress.in_topic)
        read_rate = progress.consume_rate.update(now, progress.tally.records)
        line = (
            f"written {progress.in_topic:>7,} of {progress.total:,} ({sent_rate:>6,.0f}/s)   "
            f"read {progress.tally.records:>7,} ({read_rate:>6,.0f}/s)   lag {progress.lag:,}"
        )
        if self._live is not None:
            self._live.update(self._group(progress, line), refresh=True)
        elif not last:
            self._console.print(line, highlight=False)
        else:
            self._console.print(line, highlight=False)
            self._console.print(self._table(progress))

    def _group(self, progress: Progress, line: str) -> Group:
        done = BAR_WIDTH * min(progress.tally.records, progress.total) // progress.total
        bar = Text.assemble(("━" * done, "green"), ("━" * (BAR_WIDTH - done), "bright_black"))
        notes = [Text(note, style="yellow") for note in progress.notes]
        return Group(self._table(progress), bar, Text(line), *notes)

    def _table(self, progress: Progress) -> Table:
        table = Table(title="Departures from New York City, 2013", title_justify="left")
        table.add_column("")
        table.add_column("carrier", no_wrap=True)
        for title in ("departures", "mean delay", "at arrival"):
            table.add_column(title, justify="right", no_wrap=True)
        for code, carrier in sorted(progress.tally.carriers.items(), key=lambda item: -item[1].departures):
            table.add_row(
                code,
                self._names.get(code, ""),
                f"{carrier.departures:,}",
                _minutes(carrier.mean_departure_delay),
                _minutes(carrier.mean_arrival_delay),
            )
        return table


def _minutes(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1f} min"
