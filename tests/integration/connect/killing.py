"""Runs of ``headrace connect run`` in processes of their own, which are killed at a step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.testing import TestCluster

RUN_S = 240


def run(cluster: TestCluster, directory: Path, config: Mapping[str, Any], kill_at: str = "") -> None:
    """One process, killed at the step, or until it is idle."""
    file = directory / f"{config['name']}.json"
    file.write_text(json.dumps({"name": config["name"], "config": config}))
    if kill_at:
        (directory / kill_at).write_text("kill")
    command = [sys.executable, "-m", "headrace_cli", "connect", "run", str(file), "--until-idle"]
    command += ["--bootstrap", ",".join(cluster.bootstrap_servers)]
    environment = os.environ | {"HEADRACE_FAILPOINTS_DIR": str(directory)}
    log = directory / "runs.log"
    with log.open("ab") as out:
        ended = subprocess.run(command, env=environment, stdout=out, stderr=out, timeout=RUN_S)
    assert ended.returncode == (-9 if kill_at else 0), f"{kill_at}: {log.read_text()[-4_000:]}"
