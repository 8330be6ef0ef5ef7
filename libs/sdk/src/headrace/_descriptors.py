"""What a process without free file descriptors is told: modules are loaded on first use, and loops need some too."""

from __future__ import annotations

import errno
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
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        raise Overloaded(
            f"the process has no file descriptor left ({error.strerror}); close some, or raise the limit (ulimit -n)"
        ) from error
