"""A directory or file that goes away: something else is in its place, so that nobody can use it or make another."""

from __future__ import annotations

from pathlib import Path


class Movable:
    """One of them; it need not be there yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept = path.with_name(f"{path.name}.away")
        self._is_away = False

    def go_away(self) -> bool:
        """A directory is in the place of a file, and a file in that of anything else."""
        was_file = self._path.is_file()
        if self._path.exists():
            self._path.rename(self._kept)
        if was_file:
            self._path.mkdir()
        else:
            self._path.write_text("in its place")
        self._is_away = True
        return True

    def come_back(self) -> None:
        """As it was, if it went away."""
        if not self._is_away:
            return
        self._is_away = False
        if self._path.is_dir():
            self._path.rmdir()
        else:
            self._path.unlink()
        if self._kept.exists():
            self._kept.rename(self._path)
