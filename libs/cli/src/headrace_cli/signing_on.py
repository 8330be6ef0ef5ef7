"""
A person logs in at an OIDC provider: with a browser on this machine, which the provider sends back here, or by a code
that is typed into a browser elsewhere. What is asked and believed is ``headrace._sign_on``'s.
"""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Final

from typing_extensions import override

from headrace._issuer_calls import get_json, post_form
from headrace._sign_on import (
    DEVICE_GRANT,
    Attempt,
    Provider,
    SignOn,
    Tokens,
    discovery_url,
    read_device_code,
    read_provider,
    read_tokens,
    waits_on,
)
from headrace_cli.exits import CommandFailed, ExitCode
from headrace_common.core.errors import NetworkFailed, Unauthenticated
from headrace_common.core.secret import Secret
from headrace_common.runtime.clock import SystemClock
from headrace_common.runtime.entropy import new_nonce

BROWSER_S_MAX: Final = 300.0
"""How long a person may take with a browser."""
PATH: Final = "/callback"
_REQUEST_S_MAX: Final = 5.0
_DONE: Final = b"You are logged in at the provider. Go back to the terminal; this page may be closed.\n"
_NOT_DONE: Final = b"The login was refused. The terminal says why; this page may be closed.\n"
Say = Callable[[str], None]


def ask_provider(sign_on: SignOn) -> Provider:
    """
    Where the issuer is asked for what.

    Raises:
        NetworkFailed: it does not answer.
        Rejected: what it answers cannot be taken.
    """
    return read_provider(get_json(discovery_url(sign_on.iss)), sign_on.iss)


def has_browser(env: Mapping[str, str] = os.environ, platform: str = sys.platform) -> bool:
    """Whether a browser that is opened here is one that the person sees."""
    if env.get("BROWSER"):
        return True
    if env.get("SSH_CONNECTION"):
        return False
    return not platform.startswith("linux") or bool(env.get("DISPLAY") or env.get("WAYLAND_DISPLAY"))


# --- with a browser on this machine ---------------------------------------------------------------------------


def log_in_by_browser(
    provider: Provider, sign_on: SignOn, say: Say, *, port: int = 0, opens: Callable[[str], bool] = webbrowser.open
) -> Tokens:
    """
    Wait until the person has logged in, for 5 minutes at most.

    Args:
        port: of this machine that the provider sends the browser back to; 0: any that is free.

    Raises:
        Unauthenticated: the provider refused, or nobody came.
        CommandFailed: the port is taken.
    """
    with _listening(port) as server:
        uri = f"http://127.0.0.1:{server.server_port}{PATH}"
        attempt = Attempt(provider, sign_on, uri, new_nonce(), new_nonce(), Secret(new_nonce() + new_nonce()))
        server.attempt = attempt
        url = attempt.url()
        if not opens(url):
            say("no browser could be opened here")
        say(f"log in with a browser on this machine: {url}")
        if not server.ended.wait(BROWSER_S_MAX):
            raise Unauthenticated(f"nobody has logged in within {BROWSER_S_MAX:.0f} s; begin again")
        code = attempt.code(server.target)
    status, said = post_form(provider.token, attempt.exchange(code))
    return read_tokens(status, said, sign_on, SystemClock().now_ms(), attempt.nonce)


class _Server(ThreadingHTTPServer):
    """Takes one answer: that of the login, whoever else asks."""

    daemon_threads = True
    attempt: Attempt | None = None
    target = ""

    def __init__(self, port: int) -> None:
        self.ended = Event()
        super().__init__(("127.0.0.1", port), _Handler)


class _Handler(BaseHTTPRequestHandler):
    """One request; anything on this machine, and any page of its browsers, may send some."""

    server: _Server
    timeout = _REQUEST_S_MAX

    def do_GET(self) -> None:
        server = self.server
        host = f"127.0.0.1:{server.server_port}"
        attempt = server.attempt
        if attempt is None or self.headers.get("Host") != host or not attempt.is_mine(self.path):
            self._answer(404, b"This is nothing of the login that was begun.\n")
            return
        try:
            attempt.code(self.path)
        except Unauthenticated:
            self._answer(400, _NOT_DONE)
        else:
            self._answer(200, _DONE)
        if not server.ended.is_set():
            server.target = self.path
            server.ended.set()

    def _answer(self, status: int, text: bytes) -> None:
        self.send_response(status)
        for name, value in (
            ("Content-Type", "text/plain; charset=utf-8"),
            ("Content-Length", str(len(text))),
            ("Cache-Control", "no-store"),
            ("Referrer-Policy", "no-referrer"),
            ("X-Content-Type-Options", "nosniff"),
            ("Connection", "close"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text)

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the target has the code."""


@contextmanager
def _listening(port: int) -> Iterator[_Server]:
    try:
        server = _Server(port)
    except OSError as error:
        raise CommandFailed(f"port {port} of this machine cannot be used: {error.strerror}", ExitCode.USAGE) from None
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, name="login", daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


# --- elsewhere ------------------------------------------------------------------------------------------------


def log_in_by_device(provider: Provider, sign_on: SignOn, say: Say, wait: Callable[[float], object]) -> Tokens:
    """
    Wait until the person has typed a code elsewhere, for as long as the provider lets them, 15 minutes at most.

    Args:
        wait: for so many seconds.

    Raises:
        Unauthenticated: the provider refused, or nobody came.
        CommandFailed: the provider has no device codes.
    """
    if provider.device is None:
        raise CommandFailed(
            f"{sign_on.iss} has no device codes",
            ExitCode.USAGE,
            "Log in on a machine with a browser.",
        )
    asked = {"client_id": sign_on.client_id, "scope": " ".join(sign_on.scopes)}
    status, said = post_form(provider.device, asked)
    if status != 200:
        read_tokens(status, said, sign_on, 0)
    code = read_device_code(said, provider.iss)
    say(f"open {code.place} in any browser, and type there: {code.user_code}")
    if code.place_with_code is not None:
        say(f"or open {code.place_with_code}")
    clock, interval_s = SystemClock(), code.interval_s
    until_ms = clock.monotonic_ms() + code.expires_s * 1_000
    form = {"grant_type": DEVICE_GRANT, "device_code": code.device_code.reveal(), "client_id": sign_on.client_id}
    while clock.monotonic_ms() < until_ms:
        wait(interval_s)
        try:
            status, said = post_form(provider.token, form)
        except NetworkFailed as error:
            say(f"{error}; asking on")
            continue
        more_s = waits_on(said)
        if more_s is None:
            return read_tokens(status, said, sign_on, clock.now_ms())
        interval_s += more_s
    raise Unauthenticated(f"nobody has typed the code within {code.expires_s:.0f} s; begin again")
