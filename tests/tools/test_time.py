"""Time and threads come from ``runtime.clock`` and ``runtime.threads`` alone; ruff bans what an import can name."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROVIDERS = {"libs/common/src/headrace_common/runtime/clock.py", "libs/common/src/headrace_common/runtime/threads.py"}
LAB = "libs/lab/"
"""It makes the time that its event loop has."""
OF_LOOPS = {"call_later", "call_at", "run_in_executor"}


def asks_a_loop(text: str) -> list[str]:
    """Calls of an event loop for time or threads, with their lines."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    found = []
    for call in calls:
        if not isinstance(call.func, ast.Attribute):
            continue
        of = ast.unparse(call.func.value)
        if call.func.attr in OF_LOOPS or (call.func.attr == "time" and "loop" in of):
            found.append(f"{call.lineno}: {ast.unparse(call.func)}")
    return found


def test_nothing_else_asks_an_event_loop_for_time_or_threads() -> None:
    sources = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("*/*/src/**/*.py")]
    found = {source: asks_a_loop((ROOT / source).read_text()) for source in sources if not source.startswith(LAB)}
    assert {source for source, calls in found.items() if calls} == PROVIDERS, found


def test_it_would_be_seen() -> None:
    text = "asyncio.get_running_loop().time()\nself._loop.call_at(1, f)\nloop.run_in_executor(None, f)\ntime.time()\n"
    assert [call.split(":")[0] for call in asks_a_loop(text)] == ["1", "2", "3"]
