"""
Small files of a partition put together: which ones, and the record that says so.

``merge-NUMBER.commit`` names all files with the rows of offsets below its ``end``; for readers it is in the place of
the commits below. Each is made once, where there is none, and the largest number counts. Commits stay: they are the
chain that decides between holders, and the newest one, which is never below an ``end``, is the position.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Final, Self

from headrace_common.core.errors import InvalidConfig
from headrace_connect.connectors.lake_sink.commits import ENDING, DataFile, read_json

VERSION: Final = 2
"""Readers that know commits alone refuse it: they would read rows twice."""
_NAME: Final = re.compile(rf"merge-(\d{{10}}){re.escape(ENDING)}")
_FILE: Final = re.compile(r"(\d{20})-(\d{20})-[^/]*\.parquet")


@dataclass(frozen=True, slots=True)
class Merged:
    """What a merge says; without a number below 1 that there was none."""

    id: str
    """Of this one alone."""
    end: int
    """Commits from here on count beside it."""
    files: tuple[DataFile, ...]
    """All with rows below ``end``."""
    replaced: tuple[str, ...] = ()
    """The paths of files that counted before."""
    at_ms: int = 0
    """When it was made, since 1970."""
    cleaned: int = 0
    """Up to this number, what merges have replaced is deleted."""

    def to_bytes(self) -> bytes:
        """As it is stored."""
        return json.dumps({"version": VERSION, **asdict(self)}, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> Self:
        """
        Raises:
            InvalidConfig: it is of a newer version, or damaged.
        """
        stored = read_json(data, name, VERSION)
        try:
            files = tuple(DataFile(**one) for one in stored["files"])
            return cls(
                str(stored["id"]),
                int(stored["end"]),
                files,
                tuple(map(str, stored["replaced"])),
                int(stored["at_ms"]),
                int(stored["cleaned"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidConfig(f"{name} is damaged: {error!r}; restore it") from error


NONE: Final = Merged("", 0, ())


def merge_name(number: int) -> str:
    """Of its file."""
    return f"merge-{number:010}{ENDING}"


def last_merge(names: Iterable[str]) -> int:
    """The greatest number; 0: there is none."""
    return max((int(match[1]) for name in names if (match := _NAME.fullmatch(name))), default=0)


@dataclass(frozen=True, slots=True)
class Bin:
    """Files that become one."""

    files: tuple[DataFile, ...]
    """Of one table and directory, by ascending offsets."""

    @property
    def table(self) -> str:
        """Whose rows they have."""
        return self.files[0].table

    @property
    def directory(self) -> str:
        """Below the lake's."""
        return self.files[0].path.rpartition("/")[0]

    @property
    def offsets(self) -> tuple[int, int]:
        """Of the first row, and behind the last one."""
        return _offsets(self.files[0])[0], max(_offsets(file)[1] for file in self.files)


def plan_bins(files: Sequence[DataFile], target_bytes: int) -> list[Bin]:
    """
    What is worth being put together: neighbours below half of the target, until they have it.

    Raises:
        InvalidConfig: a file has no name of this connector.
    """
    of = sorted(files, key=lambda file: (file.table, file.path.rpartition("/")[0], _offsets(file)))
    bins: list[Bin] = []
    for _, group in groupby(of, key=lambda file: (file.table, file.path.rpartition("/")[0])):
        bins += [Bin(tuple(part)) for part in _parts(group, target_bytes) if len(part) > 1]
    return bins


def _parts(files: Iterable[DataFile], target_bytes: int) -> Iterator[list[DataFile]]:
    part: list[DataFile] = []
    for file in files:
        if 2 * file.bytes >= target_bytes:
            yield part
            part = []
            continue
        part.append(file)
        if sum(one.bytes for one in part) >= target_bytes:
            yield part
            part = []
    yield part


def _offsets(file: DataFile) -> tuple[int, int]:
    match = _FILE.fullmatch(file.path.rpartition("/")[2])
    if match is None:
        raise InvalidConfig(f"{file.path} has no name of this connector; restore its commit")
    return int(match[1]), int(match[2])
