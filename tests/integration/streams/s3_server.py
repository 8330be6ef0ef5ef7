"""A real S3 server on this machine: versitygw."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from libs.common.tests.kit.ports import free_port

ROOT: Final = Path(__file__).parents[3]
KEY, SECRET = "test-key", "test-secret"
BUCKET = "snapshots"
_WAIT_S: Final = 30.0
_BUILD_S: Final = 1_200.0


def program() -> str:
    """The server's path; it is built at the first call."""
    command = [ROOT / "tools" / "versitygw.sh"]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=_BUILD_S).stdout.strip()


@contextmanager
def started_s3(directory: Path) -> Iterator[dict[str, str]]:
    """A server with an empty bucket; gives what clients need in their environment."""
    port = free_port()
    data, notes = directory / "objects", directory / "attributes"
    (data / BUCKET).mkdir(parents=True)
    notes.mkdir()
    command = [program(), "--port", f"127.0.0.1:{port}", "--quiet", "posix", "--sidecar", str(notes), str(data)]
    secrets = {"ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET}
    with (directory / "s3.log").open("wb") as log:
        server = subprocess.Popen(command, env=os.environ | secrets, stdout=log, stderr=log)
    try:
        until = time.monotonic() + _WAIT_S
        while not _listens(port):
            assert server.poll() is None, (directory / "s3.log").read_text()
            assert time.monotonic() < until, f"versitygw does not listen on port {port}"
            time.sleep(0.05)
        yield {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
    finally:
        server.kill()
        server.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
