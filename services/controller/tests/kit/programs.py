"""The programs beside the controller, as processes."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any


async def run(program: str, *arguments: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of ``python -m headrace_controller.PROGRAM``."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", f"headrace_controller.{program}", *map(str, arguments)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def said(program: str, *arguments: object) -> dict[str, Any]:
    """What it says, in JSON, where it succeeds."""
    code, out, err = await run(program, *arguments)
    assert code == 0, err
    result: dict[str, Any] = json.loads(out)
    return result
