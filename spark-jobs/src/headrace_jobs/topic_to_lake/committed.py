"""
Which files of a lake are committed: what Spark's file sink wrote in its log, for readers that are not Spark.

A directory of a streaming query holds files of attempts that were killed beside those that count. Spark reads the log
in ``_spark_metadata`` and sees only what counts; so must everybody else. Runs without Spark and without a JVM.

The log, as ``FileStreamSinkLog`` of Spark writes it: a file per micro-batch, named by its number, with a line ``v1``
and then a line of JSON per file; every tenth is ``NUMBER.compact`` and holds all before it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from pyarrow import fs

from headrace_common.core.errors import DataLost, NotFound, UnsupportedVersion

LOG: Final = "_spark_metadata"
VERSION: Final = "v1"
LOOKS_MAX: Final = 5
"""How often the log is listed anew, when a file of it was compacted away meanwhile."""
_NAME: Final = re.compile(r"([0-9]{1,18})(\.compact)?")


@dataclass(frozen=True, slots=True)
class LogFile:
    """One file of the log."""

    batch: int
    compact: bool

    @property
    def name(self) -> str:
        return f"{self.batch}.compact" if self.compact else str(self.batch)


def files_to_read(names: Iterable[str]) -> list[LogFile]:
    """
    Which files of the log hold all of it: the last compact one and those after it, or all.

    Raises:
        DataLost: one of them is missing.
    """
    found = [LogFile(int(match[1]), match[2] is not None) for name in names if (match := _NAME.fullmatch(name))]
    compacts = [file.batch for file in found if file.compact]
    first = max(compacts, default=-1)
    later = sorted((file for file in found if file.batch > first), key=lambda file: file.batch)
    expected = range(first + 1, first + 1 + len(later))
    if [file.batch for file in later] != list(expected):
        missing = sorted(set(range(first + 1, later[-1].batch)) - {file.batch for file in later})
        raise DataLost(f"the log in {LOG} has no file for the micro-batches {missing[:5]}; restore it from a backup")
    return [*([LogFile(first, True)] if compacts else []), *later]


def paths_of(texts: Iterable[str]) -> list[str]:
    """
    The committed files, as the log names them, from the texts of its files in order.

    Raises:
        UnsupportedVersion: the log is of a form that is not known here.
        DataLost: a line of it is damaged.
    """
    found: dict[str, None] = {}
    for text in texts:
        version, *lines = text.splitlines()
        if version != VERSION:
            raise UnsupportedVersion(f"the log in {LOG} is of version {version[:20]!r}, and {VERSION} is known here")
        for line in lines:
            entry = _entry(line)
            if entry.get("action", "add") == "delete":
                found.pop(entry["path"], None)
            else:
                found[entry["path"]] = None
    return list(found)


def _entry(line: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except ValueError:
        entry = None
    if not isinstance(entry, dict) or not isinstance(entry.get("path"), str):
        raise DataLost(f"the log in {LOG} has a damaged line: {line[:100]!r}")
    return entry


def committed_files(path: str, filesystem: fs.FileSystem | None = None) -> list[str]:
    """
    The files of a lake that count, as of now, in the order in which they were committed.

    Args:
        path: the lake's directory: a path, or a URI as ``s3://bucket/lake``; with ``filesystem`` a path in it.
        filesystem: pyarrow's; None: found by the URI.

    Returns:
        Names as Spark's log has them: percent-encoded URIs. ``local_path`` turns them into paths.

    Raises:
        NotFound: there is no log: nothing was committed yet, or no streaming query wrote here.
        DataLost: the log is damaged.
    """
    if filesystem is None:
        filesystem, path = fs.FileSystem.from_uri(path) if "://" in path else (fs.LocalFileSystem(), path)
    directory = f"{path.rstrip('/')}/{LOG}"
    for _ in range(LOOKS_MAX):
        listed = filesystem.get_file_info(fs.FileSelector(directory, allow_not_found=True))
        wanted = files_to_read(info.base_name for info in listed)
        if not wanted:
            raise NotFound(f"{path} has no {LOG}: nothing was committed there yet")
        try:
            return paths_of(_text(filesystem, f"{directory}/{file.name}") for file in wanted)
        except FileNotFoundError:
            continue
    raise DataLost(f"files of {directory} vanish while they are read; is something else deleting them?")


def local_path(name: str) -> str:
    """A name of the log as a path of pyarrow's file systems: without the scheme, percent-decoded."""
    parts = urlsplit(name)
    return unquote(parts.path if parts.scheme in ("", "file") else parts.netloc + parts.path)


def _text(filesystem: fs.FileSystem, path: str) -> str:
    with filesystem.open_input_stream(path) as stream:
        data: bytes = stream.read()
    return data.decode()
