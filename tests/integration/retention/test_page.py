"""docs/retention.md as it stands: its commands, then its Python, on a cluster."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.testing import TestCluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]
PAGE = Path(__file__).parents[3] / "docs" / "retention.md"


def test_the_page_does_what_it_says(cluster: TestCluster) -> None:
    text = PAGE.read_text()
    bootstrap = ",".join(cluster.bootstrap_servers)
    commands = [line for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    assert len(commands) >= 5
    for command in commands:
        words = command.split("#")[0].split()
        assert words[0] == "headrace"
        done = subprocess.run(
            [sys.executable, "-m", "headrace_cli", *words[1:]],
            env={**os.environ, "HEADRACE_BOOTSTRAP": bootstrap},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    example = doctest.DocTestParser().get_doctest(text, {"bootstrap": bootstrap}, PAGE.name, str(PAGE), 0)
    outcome = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(example)
    assert outcome.attempted
    assert not outcome.failed
