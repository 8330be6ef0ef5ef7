"""A directory or file that goes away: in its place is what nobody can use, and nobody can make another one there."""

from __future__ import annotations

import os
from pathlib import Path


class Movable:
    """One of them. It goes and comes in one step each: whoever writes meanwhile makes nothing between two steps."""

    def __init__(self, path: Path) -> None:
        """
        Args:
            path: a file; else a directory is made.
        """
        self._path = path
        self._kept = path.with_name(f"{path.name}.kept")
        self._is_file = path.is_file()
        self._is_away = False
        if not self._is_file:
            self._kept.mkdir()
            path.symlink_to(self._kept)

    def go_away(self) -> bool:
        """A directory is in the place of a file, and a file in that of a directory."""
        self._is_away = True
        if self._is_file:
            os.link(self._path, self._kept)
            self._point_at(self._path.parent)
        else:
            self._point_at(Path(__file__))
        return True

    def come_back(self) -> None:
        """As it was, if it went away."""
        if not self._is_away:
            return
        self._is_away = False
        if self._is_file:
            self._kept.replace(self._path)
        else:
            self._point_at(self._kept)

    def _point_at(self, target: Path) -> None:
        link = self._path.with_name(f"{self._path.name}.link")
        link.symlink_to(target)
        link.replace(self._path)
