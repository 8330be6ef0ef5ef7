"""Kafka's FileStream connectors, as far as the calls need them; run by hosts of a real worker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace_connect import Chunk, Position, Rows, Sink, Source, Split
from headrace_connect.settings import setting


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """Of the source."""

    topic: str
    """Where lines go."""
    file: str
    """What is read."""
    batch_size: int = setting(2_000, low=1)
    """Lines at once."""


class FileStreamSource(Source[SourceSettings]):
    """The lines of a file."""

    def splits(self) -> Sequence[Split]:
        return [Split(self.settings.file)]

    def read(self, split: Split, after: Position | None) -> Iterator[Chunk]:
        at = after["position"] if after else 0
        while True:
            with Path(split.id).open("rb") as file:
                file.seek(at)
                lines = [line.rstrip(b"\n") for line in file.readlines(self.settings.batch_size)]
                at = file.tell()
            yield Chunk(lines, {"position": at}, drained=True)


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """Of the sink."""

    file: str
    """What is written."""


class FileStreamSink(Sink[SinkSettings]):
    """Writes nothing: only its offsets matter."""

    def write(self, rows: Rows) -> None:
        pass
