"""An API server of Kubernetes on this machine: speaks TLS with a CA of its own, and answers as a test says."""

from __future__ import annotations

import http.server
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeAlias

from headrace_cli.local import certificates
from headrace_cli.local.certificate_files import EtcdFiles

BEARER: Final = "account-token"
NAMESPACE: Final = "streams"
TYPES: Final = {"/openid/v1/jwks": "application/jwk-set+json"}
"""What it answers with, where that is not JSON by its own name: to who does not accept it, nothing."""
Answer: TypeAlias = "Callable[[str, str, str | None, Any], tuple[int, Any]]"
"""Of method, path, the header Authorization and the body: the status, and what is answered; bytes as they are."""


def make_certificates(directory: Path) -> EtcdFiles:
    """Of a server on 127.0.0.1."""
    files = EtcdFiles(directory)
    certificates.renew(files, ["127.0.0.1"], datetime.now(UTC))
    return files


def make_account(directory: Path, files: EtcdFiles) -> Path:
    """What a pod's account has there."""
    directory.mkdir()
    (directory / "ca.crt").write_bytes(files.ca.read_bytes())
    (directory / "token").write_text(BEARER)
    (directory / "namespace").write_text(NAMESPACE)
    return directory


@contextmanager
def serving(answer: Answer, files: EtcdFiles) -> Iterator[dict[str, str]]:
    """While the block runs; gives what a pod's environment says of it."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def _handle(self) -> None:
            sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, found = answer(
                self.command, self.path, self.headers["Authorization"], json.loads(sent) if sent else None
            )
            if not {"*/*", TYPES.get(self.path, "application/json")} & {
                text.strip() for text in self.headers["Accept"].split(",")
            }:
                status, found = 406, b"406: Not Acceptable"
            raw = found if isinstance(found, bytes) else json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        do_GET = do_POST = do_PUT = do_DELETE = _handle

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.member, files.key(files.member))
    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(server.server_address[1])}
        finally:
            server.shutdown()
            thread.join()
