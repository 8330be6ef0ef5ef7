"""Other topics: RegexRouter, TimestampRouter."""

from __future__ import annotations

from typing import Any, ClassVar

import pyarrow as pa
from pyarrow import compute

from headrace_connect.core.batch import TIMESTAMP, TOPIC, Batch
from headrace_connect.core.halving import Unfit
from headrace_connect.core.kinds import nulls_of
from headrace_connect.core.options import REQUIRED, Option
from headrace_connect.transforms.date_patterns import DatePattern
from headrace_connect.transforms.patterns import Pattern
from headrace_connect.transforms.port import OfRecord, Settings

pc: Any = compute  # its stubs are narrower than it is


class RegexRouter(OfRecord):
    """Another topic for records whose topic matches a pattern as a whole: its first match is replaced."""

    options: ClassVar[tuple[Option, ...]] = (
        Option("regex", "The pattern.", default=REQUIRED),
        Option("replacement", "What is there instead; $1 is what the first group has matched.", default=REQUIRED),
    )

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._pattern = Pattern("regex", settings["regex"])
        self._replacement = self._pattern.replacement_for("replacement", settings["replacement"])

    def apply(self, batch: Batch) -> Batch:
        """See ``Transform``."""
        encoded = batch.column(TOPIC).dictionary_encode()
        topics = self._pattern.replaced(encoded.dictionary, self._replacement)
        return batch.replace(TOPIC, _named(topics.take(encoded.indices)))


class TimestampRouter(OfRecord):
    """A topic for a span of time, by the record's time."""

    options: ClassVar[tuple[Option, ...]] = (
        Option(
            "topic.format",
            "The topic, with ${topic} for the old one and ${timestamp}.",
            default="${topic}-${timestamp}",
        ),
        Option("timestamp.format", "The time, as Java's SimpleDateFormat; in UTC.", default="yyyyMMdd"),
    )

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._format = settings["topic.format"]
        self._pattern = DatePattern("timestamp.format", settings["timestamp.format"])

    def apply(self, batch: Batch) -> Batch:
        """See ``Transform``."""
        times = batch.column(TIMESTAMP)
        missing = nulls_of(times)
        if missing.any():
            raise Unfit("the record has no time", missing)
        texts = self._pattern.format_ms(times.to_numpy())
        parts: list[Any] = []
        for around, piece in enumerate(self._format.split("${topic}")):
            parts += [batch.column(TOPIC)] if around else []
            for between, rest in enumerate(piece.split("${timestamp}")):
                parts += [texts] if between else []
                parts.append(rest)
        if not len(batch):
            return batch
        whole = pc.binary_join_element_wise(*parts, "") if len(parts) > 1 else pa.array([parts[0]] * len(batch))
        return batch.replace(TOPIC, _named(whole))


def _named(topics: Any) -> Any:
    empty = pc.equal(topics, "").to_numpy(zero_copy_only=False)
    if empty.any():
        raise Unfit("the topic's name would be empty", empty)
    return topics
