"""What a process without free file descriptors is told: modules are loaded on first use, and loops need some too."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from headrace_common.core.errors import Overloaded  # loaded now: later nothing may be left to load it


@contextmanager
def needing_descriptors() -> Iterator[None]:
    """
    Around what opens files.

    Raises:
        Overloaded: none is left.
    """
    try:
        yield
    except (OSError, ImportError) as error:
        if not _none_left(error):
            raise
        raise _build_error("no file descriptor") from error


def need_descriptors(count: int) -> None:
    """
    Before what ends the process when it gets fewer than ``count``. Nothing is held: open them at once.

    Raises:
        Overloaded: there are not so many.
    """
    free: list[int] = []
    try:
        while len(free) < count:
            free.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        if not _none_left(error):
            raise
        raise _build_error(f"{len(free)} of the {count} file descriptors that a first connection takes") from error
    finally:
        for each in free:
            os.close(each)


def _build_error(left: str) -> Overloaded:
    return Overloaded(
        f"the process has {left} left ({os.strerror(errno.EMFILE)}); close some, or raise the limit (ulimit -n)"
    )


def _none_left(error: BaseException) -> bool:
    """Also when a library's own import has failed, which says so in its text only."""
    if isinstance(error, OSError):
        return error.errno in (errno.EMFILE, errno.ENFILE)
    return os.strerror(errno.EMFILE) in str(error)
