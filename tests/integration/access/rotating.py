"""What clients show that is changed beneath them: tokens in files, that somebody renews in time, and passwords."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from libs.common.tests.kit.issuer import SigningIssuer
from tests.integration.running_with import running_with
from tests.integration.streams.apps import PROGRAMS

from headrace import _credentials
from headrace_cli.local import LocalCluster
from headrace_common.core.access.tokens import LEEWAY_MS
from headrace_common.core.secret import Secret

LOOK = "headrace._credentials:LOOK_MS"


class TokenFile:
    """One that has a token of an issuer, which is refused ``lives_s`` later, as the cluster's clock has it."""

    def __init__(self, path: Path, issuer: SigningIssuer, subject: str, lives_s: float) -> None:
        self.path = path
        self.tokens: list[str] = []
        """All that it had."""
        self._issuer = issuer
        self._subject = subject
        self._lives_ms = lives_s * 1_000

    def renew(self) -> None:
        """By another one of the key that signs now."""
        now_ms = int(time.time() * 1_000)
        exp = (now_ms + self._lives_ms - LEEWAY_MS) / 1_000
        token = self._issuer.token(now_ms=now_ms, sub=self._subject, exp=exp, jti=str(len(self.tokens)))
        self._put(token)
        self.tokens.append(token)

    def _put(self, token: str) -> None:
        partial = self.path.with_suffix(".partial")
        partial.touch(0o600)
        partial.write_text(token)
        os.replace(partial, self.path)


class ProjectedToken(TokenFile):
    """As the kubelet has it: ``token`` leads to ``..data/token``, and ``..data`` to one directory after the other."""

    def _put(self, token: str) -> None:
        volume, data = self.path.parent, self.path.parent / "..data"
        before = data.resolve() if data.is_symlink() else None
        new = volume / f"..{len(self.tokens)}"
        new.mkdir()
        (new / self.path.name).write_text(token)
        (new / self.path.name).chmod(0o600)
        if not self.path.is_symlink():
            self.path.symlink_to(Path("..data") / self.path.name)
        next_data = volume / "..data_tmp"
        next_data.symlink_to(new.name)
        os.replace(next_data, data)
        if before is not None:
            shutil.rmtree(before)


@contextmanager
def renewing(files: list[TokenFile], every_s: float) -> Iterator[Callable[[], int]]:
    """While the block runs; gives how often all were renewed."""
    over, done = threading.Event(), count()
    renewals = [0]
    for file in files:
        file.renew()

    def run() -> None:
        for number in done:
            renewals[0] = number
            if over.wait(every_s):
                return
            for file in files:
                file.renew()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield lambda: renewals[0]
    finally:
        over.set()
        thread.join()


def watch_passwords(patch: pytest.MonkeyPatch) -> Counter[tuple[str, str]]:
    """How often each password of each file was taken, to log in."""
    taken, read = Counter[tuple[str, str]](), _credentials.read_password

    def watched(file: Path) -> Secret:
        password = read(file)
        taken[file.name, password.reveal()] += 1
        return password

    patch.setattr(_credentials, "read_password", watched)
    return taken


@contextmanager
def copying(
    cluster: LocalCluster, app: str, lines: str, words: str, token: Path, directory: Path, look_ms: float
) -> Iterator[Path]:
    """A worker of Streams that shows a token of a file; gives its log. It ends in order with the block."""
    settings: dict[str, Any] = {
        "bootstrap_servers": ",".join(cluster.bootstrap_servers),
        "state_dir": str(directory / "state"),
        "commit_interval_ms": 1_000,
    }
    command = (sys.executable, "-P", "-m", "headrace_streams", f"{PROGRAMS}:{app}", json.dumps(settings))
    shown = {"LINES": lines, "WORDS": words, "HEADRACE_CA": cluster.address.ca or "", "HEADRACE_TOKEN_FILE": str(token)}
    log = directory / "worker.log"
    with log.open("ab") as said:
        worker = subprocess.Popen(
            [*running_with({LOOK: look_ms}), *command], env=os.environ | shown, stdout=said, stderr=said
        )
    try:
        yield log
        assert worker.poll() is None, log.read_text()
        worker.terminate()
        assert worker.wait(60) == 0, log.read_text()
    finally:
        worker.kill()
        worker.wait()
