"""The certified OIDC provider as a process, and a person at its pages."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode, urljoin
from urllib.request import HTTPCookieProcessor, OpenerDirector, build_opener

from joserfc.jwk import Key
from libs.common.tests.kit.provider import CLIENT

from headrace_common.runtime.tls_config import TlsFiles

PROGRAM: Final = Path(__file__).parents[3] / "tools" / "oidc_provider" / "provider.mjs"
ID_TOKEN_S: Final = 300


@dataclass
class Certified:
    """A provider that can be started anew, with other keys."""

    modules: str
    """The directory with its packages."""
    tls: TlsFiles
    directory: Path
    port: int = 0

    @property
    def iss(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    _process: subprocess.Popen[str] | None = None

    def start(self, keys: Sequence[Key]) -> None:
        """Sign with the first of these. It forgets all that was before."""
        settings = {
            "port": self.port,
            "cert": str(self.tls.cert),
            "key": str(self.tls.key),
            "client": CLIENT,
            "jwks": {"keys": [{**key.as_dict(private=True), "use": "sig"} for key in keys]},
            "idTokenSeconds": ID_TOKEN_S,
        }
        file, log = self.directory / "settings.json", self.directory / "log"
        file.write_text(json.dumps(settings))
        argv = ["node", str(PROGRAM), self.modules, str(file)]
        with log.open("ab") as errors:
            self._process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert self._process.stdout is not None
        ready = re.fullmatch(r"ready (\d+)\n", self._process.stdout.readline())
        assert ready, log.read_text()
        self.port = int(ready[1])

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.stdout is not None:
            process.terminate()
            process.wait(30)
            process.stdout.close()


class _Form(HTMLParser):
    """The first form of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.action: str | None = None
        self.fields: dict[str, str] = {}
        self._over = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = {name: value or "" for name, value in attrs}
        if tag == "form" and self.action is None:
            self.action = said.get("action", "")
        elif tag == "input" and self.action is not None and not self._over and "name" in said:
            self.fields[said["name"]] = said.get("value", "")

    def handle_endtag(self, tag: str) -> None:
        self._over = self._over or tag == "form"


class Person:
    """With a browser: fills in what the pages ask for, until there is nothing more to fill in."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._browser: OpenerDirector = build_opener(HTTPCookieProcessor(CookieJar()))
        self.seen: list[str] = []
        """Which forms: what they had."""

    def visit(self, url: str, **more: str) -> str:
        """The last page."""
        page = self._ask(url)
        for _ in range(8):
            form = _Form()
            form.feed(page[1])
            if form.action is None:
                return page[1]
            known = {"login": self.name, "password": "whatever", **more}
            fields = {name: known.get(name, value) for name, value in form.fields.items()}
            self.seen.append(form.fields.get("prompt") or ",".join(sorted(form.fields)))
            page = self._ask(urljoin(page[0], form.action), fields)
        raise AssertionError(f"it never ends: {self.seen}")

    def _ask(self, url: str, fields: dict[str, Any] | None = None) -> tuple[str, str]:
        body = None if fields is None else urlencode(fields).encode()
        with self._browser.open(url, body, timeout=20) as answer:
            return answer.url, answer.read().decode()
