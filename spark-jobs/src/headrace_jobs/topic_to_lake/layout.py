"""
What stays as it was when a lake was begun: its columns' types and its directories; and whether lake and checkpoint
belong together. The first run's answer is kept beside the checkpoint. Called by ``job``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pyspark.sql.types import StructType

from headrace_common.core.errors import Conflict, UnsupportedVersion
from headrace_jobs.json_values import nullable

FILE: Final = "headrace-lake.json"
"""In the directory of the checkpoint: it lives as long as that does."""
FORMAT: Final = 1
_BATCH: Final = re.compile(r"([0-9]{1,18})(\.compact)?")


@dataclass(frozen=True, slots=True)
class Layout:
    """What later runs must not change."""

    schema: StructType
    values: str
    partition_by: tuple[str, ...]

    def text(self) -> str:
        found = {
            "format": FORMAT,
            "values": self.values,
            "partition_by": list(self.partition_by),
            "schema": self.schema.jsonValue(),
        }
        return json.dumps(found, indent=2) + "\n"

    @staticmethod
    def of_text(text: str) -> Layout:
        """
        Read it again.

        Raises:
            UnsupportedVersion: a later version of this job wrote it.
        """
        found = json.loads(text)
        if found.get("format") != FORMAT:
            raise UnsupportedVersion(f"{FILE} is of format {found.get('format')}, and this job knows {FORMAT}")
        return Layout(StructType.fromJson(found["schema"]), found["values"], tuple(found["partition_by"]))


def continue_layout(kept: Layout, given: Layout) -> Layout:
    """
    The layout of a run after the first.

    Returns:
        That which is to be kept from now on: columns may be added, and need not be there in old rows.

    Raises:
        Conflict: files of before and after could not be read as one table.
    """
    if kept.values != given.values:
        raise Conflict(f"this lake was begun with values of {kept.values}; write {given.values} to another lake")
    if kept.partition_by != given.partition_by:
        raise Conflict(
            f"this lake is partitioned by {', '.join(kept.partition_by)}, not by {', '.join(given.partition_by)}; "
            "begin another lake with another checkpoint for that"
        )
    now = {each.name: each.dataType for each in nullable(given.schema).fields}
    for each in kept.schema.fields:
        if each.name not in now:
            raise Conflict(f"this lake has a column {each.name}; keep it in the schema, it is null where it is missing")
        if now[each.name] != each.dataType:
            raise Conflict(
                f"column {each.name} of this lake is of type {each.dataType.simpleString()[:100]}, not "
                f"{now[each.name].simpleString()[:100]}; types of a lake stay"
            )
    return given


def last_batch(names: Iterable[str]) -> int:
    """The highest number of a micro-batch among names of files in one of Spark's logs; -1: none."""
    return max((int(match[1]) for name in names if (match := _BATCH.fullmatch(name))), default=-1)


def check_together(*, planned: int, committed: int, written: int) -> None:
    """
    Whether the lake is the one that this checkpoint wrote. Spark's sink leaves out micro-batches whose number the lake
    has already: with a new checkpoint their records would be lost without a word.

    Args:
        planned: the last micro-batch in the checkpoint's log of offsets; -1: none.
        committed: the last one in its log of commits.
        written: the last one in the lake's log.

    Raises:
        Conflict: they do not belong together.
    """
    if written > planned:
        raise Conflict(
            f"the lake holds micro-batches up to {written} and the checkpoint plans up to {planned}: this checkpoint "
            "did not write it, and Spark would leave out micro-batches; use the lake's own checkpoint, or another lake"
        )
    if committed > written:
        raise Conflict(
            f"the checkpoint has committed micro-batches up to {committed} and the lake holds up to {written}: files "
            "or log of the lake are gone; restore them, or begin again with another checkpoint"
        )
