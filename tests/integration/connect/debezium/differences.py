"""Where our records are not Debezium's, and why; ``docs/connectors/postgres-cdc.md`` tells users."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from tests.integration.connect.debezium.changes import VARIANTS


@dataclass(frozen=True, slots=True)
class Difference:
    """Paths that differ."""

    what: str
    paths: str
    """A regular expression."""
    why: str
    variants: tuple[str, ...] = tuple(VARIANTS)

    def matches(self, variant: str, path: str) -> bool:
        """Whether this says why ``path`` differs."""
        return variant in self.variants and re.search(self.paths, path) is not None


_ROW: Final = "/(before|after)"
DIFFERENCES: Final[tuple[Difference, ...]] = (
    Difference("members", r"/source/(version|ts_ns|origin|origin_lsn|xmin)$", "nobody was seen to read them"),
    Difference("finer times of an envelope", r"value /ts_(us|ns)$", "ts_ms has when it was read"),
    Difference(
        "order within a table", "/data_collection_order$", "there is no topic of transactions to hold it against"
    ),
    Difference("the name of source.snapshot", "types value /source/snapshot$", "it is a text"),
    Difference("names of texts", f"types value {_ROW}/(doc|old|page|uid|mood)$", "json, xml, uuid and enums are texts"),
    Difference("times with a zone", f"{_ROW}/away$", "timetz is the text that the server has"),
    Difference("bits", f"{_ROW}/bits$", "they are the text that the server has"),
    Difference("intervals", f"{_ROW}/span$", "they have months, which are no number of microseconds"),
    Difference("reals", f"{_ROW}/r$", "they are the double of the same value, with its digits"),
    Difference("numerics without bounds", f"{_ROW}/free(/|$)", "they are text: no one scale is theirs", ("as it is",)),
    Difference(
        "names of dates and times",
        f"types value {_ROW}/(day|moment_ms)$",
        "where values are the same, they are Kafka Connect's",
        ("as it is", "doubles and hex"),
    ),
    Difference("the name of times of a day", f"types value {_ROW}/clock_ms$", "the same", ("as it is",)),
    Difference("order of a changed key", "/total_order$", "a change has one number", ("doubles and hex",)),
    Difference("headers", "headers __debezium.(new|old)key", "keys are texts in them, and tombstones have none"),
    Difference("defaults in before", "/before/needed$", "what the server did not send is null, and no default"),
    Difference(
        "tombstones without a key", "^keyless records$", "there is no key to delete", ("as it is", "doubles and hex")
    ),
)
