"""A host loads what all connectors need, and no more: each host pays for it."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

LATER: Final = (
    "narwhals",
    "fastavro",
    "headrace_streams.dsl",
    "headrace_streams.runtime",
    "headrace_connect.connectors",
)
"""What is loaded when a configuration names it."""


def test_a_host_loads_little() -> None:
    code = (
        f"import sys, headrace_connect.runtime.host; print([one for one in sys.modules if one.startswith({LATER!r})])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert ran.stdout.strip() == "[]"
