"""Says that something goes on, and for how long: for what takes longer than two seconds and shows nothing itself."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from rich.console import Console

TELL_SECONDS: Final = 2.0
LINE_SECONDS: Final = 4.0
"""Between lines where there is no terminal."""


class Waiting:
    """A context manager: a line that counts at a terminal, else a line now and then, from a thread of its own."""

    def __init__(self, console: Console, what: str, *, tell_seconds: float = TELL_SECONDS) -> None:
        self._console = console
        self._what = what
        self._tell_seconds = tell_seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tell, name="waiting", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()

    def _tell(self) -> None:
        begun = time.monotonic()
        if self._over.wait(self._tell_seconds):
            return
        if not self._console.is_terminal:
            while True:
                self._console.print(self._text(begun), highlight=False)
                if self._over.wait(LINE_SECONDS):
                    return
        with self._console.status(self._text(begun)) as status:
            while not self._over.wait(1.0):
                status.update(self._text(begun))

    def _text(self, begun: float) -> str:
        return f"  {self._what} ... {time.monotonic() - begun:.0f} s"
