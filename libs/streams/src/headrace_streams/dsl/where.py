"""Where a program says something: errors name the line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

_OWN: Final = str(Path(__file__).parents[1])


def where() -> str:
    """The file and line of the nearest caller outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OWN):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
