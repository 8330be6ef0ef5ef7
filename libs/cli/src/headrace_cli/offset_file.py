"""
Offsets in a file: CSV as ``kafka-consumer-groups --export`` writes it, ``topic,partition,offset`` a line, or with the
group before them where it is of several groups. Pure.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Final

from headrace_cli.exits import CommandFailed, ExitCode

OFFSETS_MAX: Final = 10_000
_SHAPE: Final = "It takes lines such as flights,0,42: topic, partition, offset; a first line with names is skipped."


def read_offsets(text: str, group: str, where: str) -> dict[tuple[str, int], int]:
    """
    Offsets by topic and partition; lines of other groups are left out.

    Raises:
        CommandFailed: it is not that, names a partition twice, or has nothing for this group.
    """
    found: dict[tuple[str, int], int] = {}
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), start=1):
        try:
            fields = next(csv.reader([line]), [])
        except csv.Error as error:
            raise _wrong(where, number, str(error)) from None
        row = [field.strip() for field in fields]
        if not any(row) or (number == 1 and row[-3:] == ["topic", "partition", "offset"]):
            continue
        if len(row) not in (3, 4) or not all(part.isascii() and part.isdigit() for part in row[-2:]):
            raise _wrong(where, number, f"{','.join(row)!r} is no offset of a partition")
        if len(row) == 4 and row[0] != group:
            continue
        topic, partition, offset = row[-3], int(row[-2]), int(row[-1])
        if (topic, partition) in found:
            raise _wrong(where, number, f"{topic}-{partition} is there twice")
        if partition >= 2**31 or offset >= 2**63:
            raise _wrong(where, number, f"{','.join(row[-2:])} is too large")
        found[topic, partition] = offset
    if not found:
        raise CommandFailed(f"{where} has no offsets of group {group!r}", ExitCode.USAGE, _SHAPE)
    if len(found) > OFFSETS_MAX:
        much = f"{where} has {len(found)} offsets, more than the {OFFSETS_MAX} of one reset"
        raise CommandFailed(much, ExitCode.USAGE, "Split the file.")
    return found


def _wrong(where: str, line: int, what: str) -> CommandFailed:
    return CommandFailed(f"{where}, line {line}: {what}", ExitCode.USAGE, _SHAPE)


def write_offsets(offsets: Iterable[tuple[str, int, int]]) -> str:
    """The same lines, for ``read_offsets`` and for Kafka's tool."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(offsets)
    return out.getvalue()
