"""The source ``files``: each file is a split, its position is an offset in a file that is told by what it is."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import Final

from headrace_connect.connectors.files.follower import Follower
from headrace_connect.connectors.files.identity import FilePosition
from headrace_connect.connectors.files.parsed import Damage
from headrace_connect.connectors.files.settings import SourceSettings
from headrace_connect.connectors.places import Place, find_place
from headrace_connect.plugin import BadItem, Chunk, Position, RetriableError, Source, Split
from headrace_connect.settings import Problem, invalid

_SPLIT_CHARS_MAX: Final = 249
_log: Final = logging.getLogger(__name__)
_NAME: Final = "name"


class FilesSource(Source[SourceSettings]):
    """Rows of the files of a directory or bucket, which may grow, be added and be replaced."""

    monotonic_s: Callable[[], float] = staticmethod(time.monotonic)

    def __init__(self, settings: SourceSettings) -> None:
        super().__init__(settings)
        self._place: Place | None = None
        self._followers: dict[str, Follower] = {}
        """By split."""

    def check(self) -> Sequence[str]:
        """See ``Connector``."""
        place = find_place(self.settings.path)
        try:
            place.check()
            names = place.find(self.settings.pattern)
        except RetriableError as error:
            return [f"{error}; check that path is right, and that it may be read"]
        return [] if names else [self._nothing]

    def start(self) -> None:
        """See ``Connector``."""
        self._place = find_place(self.settings.path)

    def splits(self) -> Sequence[Split]:
        """
        Each file that is there and matches.

        Raises:
            RetriableError: the place cannot be reached; what is read of it stays so.
        """
        assert self._place is not None, "start comes first"
        if not self._place.is_there():
            raise RetriableError(f"{self.settings.path} is not there, or is no directory")
        names = self._place.find(self.settings.pattern)
        if not names:
            _log.warning("%s", self._nothing)
        return [Split(_split_id(name), {_NAME: name}) for name in names]

    @property
    def _nothing(self) -> str:
        path, pattern = self.settings.path, self.settings.pattern
        return f"no file below {path} matches the pattern {pattern}: there is nothing to read until one does"

    def read(self, split: Split, after: Position | None) -> Iterator[Chunk]:
        """
        See ``Source``.

        Raises:
            InvalidConfig: ``after`` is no position of this connector.
        """
        name = str(split.detail.get(_NAME, split.id))
        try:
            position = None if after is None else FilePosition.from_json(after)
        except ValueError as wrong:
            raise invalid([Problem("", f"{name}: {wrong}")]) from wrong
        assert self._place is not None, "start comes first"
        settings = self.settings
        by_id = settings.identity == "file"
        follower = Follower(self._place, name, settings.reader(name), position, by_id, settings.complete_after_ms)
        self._followers[split.id] = follower
        try:
            while True:
                yield self._next(follower, name)
        finally:
            if self._followers.get(split.id) is follower:
                del self._followers[split.id]
            follower.close()

    def is_still(self, split: Split) -> bool:
        """See ``Source``: a local file that looks as it did."""
        follower = self._followers.get(split.id)
        return follower is not None and follower.is_still()

    def stop(self) -> None:
        """See ``Connector``."""
        for follower in self._followers.values():
            follower.close()

    def _next(self, follower: Follower, name: str) -> Chunk:
        step = follower.step(self.monotonic_s() * 1_000)
        position = (follower.position or FilePosition("", 0)).to_json()
        if step.piece is None:
            return Chunk([], position, drained=not step.more)
        bad = [BadItem(one.raw, _describe(name, one)) for one in step.piece.damage]
        return Chunk(step.piece.rows, step.piece.position.to_json(), bad=bad)


def _split_id(name: str) -> str:
    """The name, or as much of it as an id can hold and a hash."""
    if len(name) <= _SPLIT_CHARS_MAX:
        return name
    digest = blake2b(name.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
    return f"{name[: _SPLIT_CHARS_MAX - len(digest) - 1]}~{digest}"


def _describe(name: str, damage: Damage) -> str:
    return f"{name}, byte {damage.offset}: {damage.reason}"
