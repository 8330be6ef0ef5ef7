"""Files that processes which may be killed at any moment leave each other: whole, or not there."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def put(path: Path, content: Any) -> None:
    """Instead of what was there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}~")
    draft.write_text(json.dumps(content))
    draft.rename(path)


def put_first(path: Path, content: Any) -> Any:
    """Unless there is something already; what is there now."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}~")
    draft.write_text(json.dumps(content))
    try:
        os.link(draft, path)
    except FileExistsError:
        content = get(path)
    draft.unlink()
    return content


def get(path: Path) -> Any:
    """What is there; None: nothing."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None


def names(directory: Path, pattern: str = "*") -> list[Path]:
    """Of what is whole."""
    return sorted(path for path in directory.glob(pattern) if not path.name.endswith("~"))


def note(path: Path, line: Any) -> None:
    """One more line of a log that one process writes."""
    with path.open("ab", buffering=0) as file:
        file.write(json.dumps(line).encode() + b"\n")


def lines(path: Path) -> Iterator[Any]:
    """Of such a log; the last may have been cut short."""
    for line in path.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n"):
            yield json.loads(line)
