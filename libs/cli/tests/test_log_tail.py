"""What an error says of a process that did not start."""

from __future__ import annotations

import json
from pathlib import Path

from headrace_cli.local.processes import tail


def test_the_end_of_a_log_is_sentences_without_tracebacks(tmp_path: Path) -> None:
    log = tmp_path / "broker-1.log"
    told = {"level": "info", "msg": "logs are open", "node": 1}
    failed = {"level": "critical", "msg": "it ends", "error": "Traceback (most recent call last):\n  x\nWrong: no"}
    log.write_text("\n".join(["old", json.dumps(told), "plain words", json.dumps(failed), "[1]"]) + "\n")
    assert tail(log, 4).splitlines() == ["info: logs are open", "plain words", "critical: it ends: Wrong: no", "[1]"]
    assert tail(tmp_path / "none", 4) == ""
