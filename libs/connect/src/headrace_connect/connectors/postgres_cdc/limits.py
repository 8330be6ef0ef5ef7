"""How much is done at once, and how long things wait."""

from __future__ import annotations

from typing import Final

FRAMES_MAX: Final = 5_000
"""Are handled before anything else is done."""
BATCH_BYTES: Final = 8 << 20
"""What waits is converted after so many bytes of the stream."""
PAUSE_MS: Final = 100.0
"""Before something is asked of the server again: what is open now, whether a lock is free, how far it has come."""
BUSY_MS: Final = 1_000.0
"""Before a table is tried again that somebody has locked."""
QUIET_MS: Final = 5_000.0
"""A server that has not come further for so long, near the end, is at the end: a page's header lies between."""
PAGE: Final = 8_192
"""Of the WAL, bytes."""
TELL_MS: Final = 30_000.0
"""Between two warnings."""
LOOK_MS: Final = 10_000.0
"""There is a look for new tables at most so often."""
