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
_NAMED: Final = r" (name|version|parameters( \w+)?)$"
_AS_TYPE: Final = r"( (type|name|version|parameters( \w+)?))?$"
"""Behind the path of a column: it is another value, or has another type."""
DIFFERENCES: Final[tuple[Difference, ...]] = (
    Difference("members", r"/source/(origin|origin_lsn|xmin)$", "they are null but for who asks for them"),
    Difference(
        "order within a table", "/data_collection_order$", "there is no topic of transactions to hold it against"
    ),
    Difference("the version of an envelope", "types value / version$", "nobody was seen to read it"),
    Difference("source.snapshot", f"types value /source/snapshot{_NAMED}", "it is a text"),
    Difference(
        "what is required of values",
        "types value /.* optional$",
        "a row before a change may have its key alone, and that a column was NOT NULL is not in the WAL",
    ),
    Difference(
        "the order of a key's columns",
        "^pair records [0-9]+ key text$",
        "it is that of the table: the primary key's is known of now, and not of the change",
    ),
    Difference(
        "keys of tables with the identity FULL",
        "^whole (types key /id optional|records [0-9]+ key text)$",
        "that they are the primary key is known of now, and not of the change",
    ),
    Difference("enums", f"types value {_ROW}/mood{_NAMED}", "their values are not in the WAL"),
    Difference("times with a zone", f"{_ROW}/away{_AS_TYPE}", "timetz is the text that the server has"),
    Difference("bits", f"{_ROW}/bits{_AS_TYPE}", "they are the text that the server has"),
    Difference("intervals", f"{_ROW}/span{_AS_TYPE}", "they have months, which are no number of microseconds"),
    Difference("reals", f"{_ROW}/r{_AS_TYPE}", "they are the double of the same value, with its digits"),
    Difference(
        "numerics without bounds",
        f"{_ROW}/free(/(scale|value))?{_AS_TYPE}",
        "they are text: no one scale is theirs",
        ("as it is",),
    ),
    Difference("order of a changed key", "/total_order$", "a change has one number", ("doubles and hex",)),
    Difference("headers", "headers __debezium.(new|old)key", "keys are texts in them, and tombstones have none"),
    Difference("defaults in before", "/before/needed$", "what the server did not send is null, and no default"),
    Difference(
        "tombstones without a key", "^keyless records$", "there is no key to delete", ("as it is", "doubles and hex")
    ),
)
