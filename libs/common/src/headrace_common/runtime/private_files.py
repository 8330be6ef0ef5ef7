"""
Decides who may read what a process writes: its own user alone.

Services call ``keep_private`` before all else (``early``), so do the supervisor of a local cluster and the programs
beside the controller. Whoever owns a data directory calls ``narrow`` on it at its start, for files of a version that
left them open; who trusts what a directory says asks ``foreign_owner`` first. Imports nothing but the standard library.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

UMASK: Final = 0o077
NAMED_MAX: Final = 10


def keep_private() -> None:
    """What this process and its children make from now on is for their user alone."""
    os.umask(UMASK)


def foreign_owner(path: Path, opened: int | None = None) -> int | None:
    """
    Which other user owns ``path``, and so decides what it says; None: nobody does, for it is ours, root's, or not
    there. What a link leads to counts.

    Args:
        opened: its descriptor, where it is open: nobody can put something else in its place then.
    """
    try:
        owner = _owner_of(path, opened)
    except OSError:
        return None  # whoever opens it hears why
    return None if owner in {os.geteuid(), 0} else owner


def _owner_of(path: Path, opened: int | None) -> int:
    return os.stat(path if opened is None else opened).st_uid


@dataclass(slots=True)
class Narrowed:
    """What was open to other users."""

    count: int = 0
    """Files and directories that are for this user alone now."""
    left: list[Path] = field(default_factory=list)
    """Those that still are open; the first ``NAMED_MAX``."""

    def __str__(self) -> str:
        """As a log says it."""
        said = [f"{self.count} of its files and directories were open to other users, and are not any more"]
        if self.left:
            names = ", ".join(map(str, self.left))
            said.append(f"these stay open to other users, because another user owns them: {names}")
        return "; ".join(said if self.count else said[1:])


def narrow(top: Path, *, only: Callable[[str], bool] = lambda name: True) -> Narrowed:
    """
    Take the rights of other users, and of the group, from ``top`` and everything below it, as far as it is ours.

    If ``top`` is closed it is not looked into: nobody else gets through it, and what is made below it is private. So
    only the first start after an upgrade takes its time. Links are not followed.

    Args:
        only: which entries of ``top`` are meant, by their names.
    """
    found, top = Narrowed(), top.resolve()
    if not _close(top, found):
        return found
    for directory, names, files in os.walk(top):
        if Path(directory) == top:
            names[:], files[:] = filter(only, names), filter(only, files)
        for name in (*names, *files):
            _close(Path(directory, name), found)
    return found


def _close(path: Path, found: Narrowed) -> bool:
    """Whether it was open."""
    try:
        at = path.lstat()
        if stat.S_ISLNK(at.st_mode) or not at.st_mode & UMASK:
            return False
        if at.st_uid == os.geteuid():
            path.chmod(stat.S_IMODE(at.st_mode) & ~UMASK)
            found.count += 1
            return True
    except FileNotFoundError:
        return False
    except OSError:
        pass  # a file system that is read-only or knows no rights: it stays as it is
    if len(found.left) < NAMED_MAX:
        found.left.append(path)
    return True
