"""A real browser without a window, which a test drives by the DevTools protocol over two pipes."""

from __future__ import annotations

import fcntl
import json
import os
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeAlias

WAIT_S: Final = 60.0
FLAGS: Final = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--mute-audio"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-default-apps"),
    # It has defences of its own against pages of other networks; what is tested is ours.
    "--disable-features=LocalNetworkAccessChecks,BlockInsecurePrivateNetworkRequests,Translate,OptimizationHints",
    # Frames of other sites are in the process of the page then, so what they ask for is seen too.
    "--disable-site-isolation-trials",
)
Message: TypeAlias = dict[str, Any]


class ScriptFailed(AssertionError):
    """What a page threw."""


@dataclass
class Asked:
    """One request of a page, as the browser sent it."""

    method: str
    url: str
    status: int | None = None
    """None: there was no answer that the browser took."""
    cookies: list[str] = field(default_factory=list)
    """Names of those that went with it."""


class Page:
    """One tab, with all that it asks and complains about. One thread."""

    def __init__(self, browser: Chromium, context: str, session: str) -> None:
        self._browser = browser
        self._context = context
        self._session = session
        self._asked: dict[str, Asked] = {}
        self._past: list[Asked] = []
        self._loads = 0
        self.complaints: list[str] = []
        """What its console shows as an error, but answers of 400 and more."""

    def call(self, method: str, **params: Any) -> Message:
        return self._browser.call(method, self._session, **params)

    @property
    def asked(self) -> list[Asked]:
        """All of it since ``forget``, with the parts before a redirect."""
        self._browser.take()
        return [*self._past, *self._asked.values()]

    def forget(self) -> None:
        """What was asked and complained about so far."""
        self._browser.take()
        self._asked, self._past = {}, []
        self.complaints.clear()

    def go(self, url: str) -> None:
        """Open an address; return when all of its page is there."""
        self._waits_for_load(lambda: self.call("Page.navigate", url=url))

    def reload(self) -> None:
        self._waits_for_load(lambda: self.call("Page.reload"))

    def _waits_for_load(self, act: Callable[[], object]) -> None:
        before = self._loads
        act()
        self._browser.until(lambda: self._loads > before)

    def run(self, script: str) -> Any:
        """The value of an expression, or of the promise that it is."""
        said = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True, userGesture=True)
        if "exceptionDetails" in said:
            thrown = said["exceptionDetails"]
            raise ScriptFailed(thrown.get("exception", {}).get("description") or thrown["text"])
        return said["result"].get("value")

    def until(self, script: str) -> None:
        """Wait until an expression is true, also over a reload."""
        self._browser.until(lambda: self._holds(script), again_s=0.05)

    def _holds(self, script: str) -> bool:
        try:
            return bool(self.run(script))
        except ScriptFailed:  # the page is just changed for another
            return False

    def type(self, selector: str, text: str) -> None:
        """As by a keyboard."""
        self.run(f"document.querySelector({json.dumps(selector)}).focus()")
        self.call("Input.insertText", text=text)

    def press_enter(self) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", text="\r", windowsVirtualKeyCode=13
            )

    def click(self, selector: str) -> None:
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def cookies(self) -> dict[str, Message]:
        """All that the person has, of any place."""
        found = self._browser.call("Storage.getCookies", browserContextId=self._context)["cookies"]
        return {one["name"]: one for one in found}

    @contextmanager
    def served(self, url: str, html: str) -> Iterator[None]:
        """Have one address be a page of a test, whoever is there: as if its name had led elsewhere before."""
        self._browser.pages_of_tests[url] = html
        self.call("Fetch.enable", patterns=[{"urlPattern": url, "resourceType": "Document"}])
        try:
            yield
        finally:
            self.call("Fetch.disable")
            del self._browser.pages_of_tests[url]

    def on(self, method: str, params: Message) -> None:
        match method:
            case "Network.requestWillBeSent":
                asked = Asked(params["request"]["method"], params["request"]["url"])
                before = self._asked.get(params["requestId"])
                if before is not None:
                    before.status = params.get("redirectResponse", {}).get("status")
                    self._past.append(before)
                self._asked[params["requestId"]] = asked
            case "Network.requestWillBeSentExtraInfo":
                sent = [one["cookie"]["name"] for one in params["associatedCookies"] if not one["blockedReasons"]]
                self._of(params).cookies += sent
            case "Network.responseReceivedExtraInfo":
                self._of(params).status = params["statusCode"]
            case "Network.responseReceived":
                self._of(params).status = params["response"]["status"]
            case "Page.loadEventFired":
                self._loads += 1
            case "Runtime.exceptionThrown":
                self.complaints.append(str(params["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if params["type"] == "error":
                self.complaints.append(str(params["args"]))
            case "Log.entryAdded" if params["entry"]["level"] == "error" and params["entry"]["source"] != "network":
                self.complaints.append(params["entry"]["text"])

    def _of(self, params: Message) -> Asked:
        return self._asked.setdefault(params["requestId"], Asked("", ""))


class Chromium:
    """The browser. One thread."""

    def __init__(self, program: str, profile: Path, flags: Sequence[str] = ()) -> None:
        """
        Args:
            profile: an empty directory.
        """
        self.pages_of_tests: dict[str, str] = {}
        ours_in, written = os.pipe()
        read, ours_out = os.pipe()
        theirs_in, theirs_out = (fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, 10) for one in (read, written))
        pipes = f"exec 3<&{theirs_in} 4>&{theirs_out} {theirs_in}<&- {theirs_out}>&-"
        argv = [program, *FLAGS, *flags, f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"]
        with (profile / "log").open("wb") as log:
            self._process = subprocess.Popen(
                ["bash", "-c", f'{pipes}; exec "$@"', "bash", *argv],
                pass_fds=(theirs_in, theirs_out),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=os.environ | {"HOME": str(profile)},
            )
        for one in (read, written, theirs_in, theirs_out):
            os.close(one)
        self._out = os.fdopen(ours_out, "wb", buffering=0)
        self._in = os.fdopen(ours_in, "rb", buffering=0)
        self._messages: queue.Queue[Message | None] = queue.Queue()
        self._answers: dict[int, Message] = {}
        self._numbers = count(1)
        self._pages: dict[str, Page] = {}
        threading.Thread(target=self._read, name="chromium", daemon=True).start()

    def close(self) -> None:
        self._out.close()  # it ends with its pipe
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        self._in.close()

    @contextmanager
    def person(self) -> Iterator[Callable[[], Page]]:
        """Opens tabs of somebody who shares cookies with nobody else here."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        try:
            yield lambda: self._new_page(context)
        finally:
            self.call("Target.disposeBrowserContext", browserContextId=context)

    def _new_page(self, context: str) -> Page:
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, context, session)
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.call(f"{domain}.enable")
        return page

    def call(self, method: str, session: str | None = None, **params: Any) -> Message:
        """Raises: ScriptFailed: the browser refuses."""
        number = self._send(method, session, params)
        self.until(lambda: number in self._answers)
        answer = self._answers.pop(number)
        if "error" in answer:
            raise ScriptFailed(f"{method}: {answer['error']['message']}")
        result: Message = answer["result"]
        return result

    def until(self, holds: Callable[[], bool], again_s: float = WAIT_S) -> None:
        """Take what the browser says until something is so, which is looked at again each time, and after so long."""
        timer, deadline = threading.Event(), time.monotonic() + WAIT_S
        while not holds():
            assert time.monotonic() < deadline, "it did not come about"
            if again_s < WAIT_S:
                timer.wait(again_s)
                self.take()
            else:
                self._take(self._messages.get(timeout=WAIT_S))

    def take(self) -> None:
        """What the browser has said meanwhile."""
        while not self._messages.empty():
            self._take(self._messages.get())

    def _take(self, message: Message | None) -> None:
        if message is None:
            raise AssertionError("the browser has ended")
        if "id" in message:
            self._answers[message["id"]] = message
        elif message["method"] == "Fetch.requestPaused":
            self._fulfil(message["params"], message.get("sessionId"))
        elif (page := self._pages.get(message.get("sessionId", ""))) is not None:
            page.on(message["method"], message["params"])

    def _fulfil(self, paused: Mapping[str, Any], session: str | None) -> None:
        from base64 import b64encode

        html = self.pages_of_tests.get(paused["request"]["url"], "")
        self._send(
            "Fetch.fulfillRequest",
            session,
            {
                "requestId": paused["requestId"],
                "responseCode": 200,
                "responseHeaders": [{"name": "content-type", "value": "text/html"}],
                "body": b64encode(html.encode()).decode(),
            },
        )

    def _send(self, method: str, session: str | None, params: Mapping[str, Any]) -> int:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params, **({"sessionId": session} if session else {})}
        self._out.write(json.dumps(message).encode() + b"\0")
        return number

    def _read(self) -> None:
        rest = b""
        while some := self._in.read(1 << 16):
            *whole, rest = (rest + some).split(b"\0")
            for one in whole:
                self._messages.put(json.loads(one))
        self._messages.put(None)


@contextmanager
def chromium(program: str, profile: Path, *flags: str) -> Iterator[Chromium]:
    """A new one, with an empty profile."""
    profile.mkdir(parents=True)
    made = Chromium(program, profile, flags)
    try:
        yield made
    finally:
        made.close()
