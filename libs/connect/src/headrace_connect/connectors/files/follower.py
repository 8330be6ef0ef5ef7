"""Follows the file under one name: waits for what is not whole, and notices when another file has taken the name."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final

from headrace_connect.connectors.files.identity import FilePosition, find_difference
from headrace_connect.connectors.files.reading import Reader, Step
from headrace_connect.connectors.places import OpenFile, Place, Seen
from headrace_connect.plugin import RetriableError

STILL_MS: Final = 3_000.0
"""A file has looked the same for so long before its looks say that nothing was written: times of files are coarse."""
_log: Final = logging.getLogger(__name__)


class Follower:
    """Reads one split. Its methods block; one caller at a time."""

    def __init__(
        self,
        place: Place,
        name: str,
        reader: Reader,
        after: FilePosition | None,
        by_id: bool,
        complete_after_ms: float,
    ) -> None:
        """
        Args:
            complete_after_ms: a file that has not changed for so long is complete; below 0: none ever is. Objects
                always are.
        """
        self._place = place
        self._name = name
        self._reader = reader
        self._by_id = by_id
        self._complete_after_ms = complete_after_ms
        self._file: OpenFile | None = None
        self._renamed = False
        self._seen: Seen | None = None
        self._since_ms = 0.0
        self._waiting: str | None = None
        self._rested: Seen | None = None
        """How the file looked when there was nothing to read of it, and will be nothing until it looks otherwise."""
        self.position = after

    def step(self, now_ms: float) -> Step:
        """
        Read some records. A step without a piece says that there is nothing now.

        Args:
            now_ms: of a monotonic clock.

        Raises:
            RetriableError: the place cannot be read now.
        """
        self._rested = None
        just_opened = self._file is None
        if self._file is None:
            self._file = self._open()
            if self._file is None:
                if not self._place.is_there():
                    raise RetriableError(f"{self._name} cannot be opened: its directory is not there")
                return Step(waiting="there is no file of this name")
        assert self.position is not None, "an open file has one"
        seen = self._file.seen
        complete = self._is_complete(seen, now_ms)
        try:
            step = self._reader.step(self._file, self.position, complete)
        except BaseException:
            self.close()
            raise
        if step.piece is not None:
            self.position = step.piece.position
        if not step.more:
            self.close()
            self._log_waiting(step.waiting)
            if self._renamed:
                self._renamed = False
                self.position = None
                return replace(step, more=True)
            if step.piece is None and not just_opened:  # it may have grown, or be another one by now
                return self.step(now_ms)
            if step.piece is None and self._may_rest(step, now_ms):
                self._rested = seen
        return step

    def is_still(self) -> bool:
        """Whether the next step would find nothing, as far as that can be seen without opening the file."""
        if self._rested is None:
            return False
        try:
            return self._place.see(self._name) == self._rested
        except RetriableError:
            return False

    def close(self) -> None:
        """Let go of the file; the next step opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> OpenFile | None:
        file = self._place.open(self._name)
        if file is None:
            return None
        if self.position is None or not self.position.id:
            self.position = FilePosition(file.seen.id, 0)
            return file
        difference = find_difference(self.position, file.seen, file.read_at, self._by_id)
        if difference is None:
            self.position = replace(self.position, id=file.seen.id)
            return file
        old = self._open_renamed() if self._by_id and self.position.id != file.seen.id else None
        if old is not None:
            file.close()
            return old
        _log.warning("%s: %s; it is read from its start", self._name, difference)
        self.position = FilePosition(file.seen.id, 0)
        return file

    def _open_renamed(self) -> OpenFile | None:
        """The file that had the name before: what was written to it after the last read is read first."""
        assert self.position is not None
        other = self._place.find_renamed(self._name, self.position.id)
        file = None if other is None else self._place.open(other)
        if file is None:
            return None
        if find_difference(self.position, file.seen, file.read_at, by_id=True) is not None:
            file.close()
            return None
        _log.info("%s is %s by now; it is read to its end first", self._name, other)
        self._renamed = True
        return file

    def _is_complete(self, seen: Seen, now_ms: float) -> bool:
        if seen != self._seen:
            self._seen, self._since_ms = seen, now_ms
        if self._place.objects or self._renamed:
            return True
        return 0 <= self._complete_after_ms <= now_ms - self._since_ms

    def _may_rest(self, step: Step, now_ms: float) -> bool:
        ends_later = step.waiting is not None and self._complete_after_ms >= 0
        return not ends_later and now_ms - self._since_ms >= STILL_MS

    def _log_waiting(self, waiting: str | None) -> None:
        if waiting is not None and waiting != self._waiting:
            _log.warning("%s: %s; complete.after.ms says when a file is taken as complete", self._name, waiting)
        self._waiting = waiting
