"""Who logs in by a browser: the cookie, what another page may not do with it, and when it is over."""

from __future__ import annotations

import base64
import hashlib
import logging
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import httpx
import pytest
from libs.common.tests.kit.clock import FakeClock
from libs.common.tests.kit.closed import Rows, bearing, key_of, key_text
from libs.common.tests.kit.passwords import CORRECT, make_user
from services.admin.tests.kit.behind import Front, opened
from services.admin.tests.kit.rest import JSON
from services.admin.tests.kit.world import LIMITS

from headrace_admin.adapters.aes_seals import AesSeals
from headrace_admin.config import Limits
from headrace_admin.core.browser_sessions import IDLE_MS, LASTS_MS, RENEW_MS, BrowserSession
from headrace_admin.rpc.rest import rest_app
from headrace_common.core.access.rows import Mode
from headrace_common.core.access.scram import ServerExchange
from headrace_common.core.access.users import User
from headrace_common.core.errors import CredentialsExpired
from headrace_common.core.quotas.token_bucket import BUCKET_S
from headrace_common.core.secret import Secret
from headrace_common.http.foreign_pages import Hosts
from headrace_common.http.safe_headers import SAFE_HEADERS
from headrace_proto.v1 import access_pb2 as pb

USER: Final = make_user()
KEY: Final = replace(key_of("alice"), login=USER.password.id, expires_ms=2**53)
ROWS: Final = Rows(users=(USER,), keys=[KEY, key_of("bob")])
PAGE: Final = JSON | {"x-headrace-request": "1"}
"""What a page of our own sends with a change."""
ONE: Final = ("127.0.0.1", 1)
CLUSTER: Final = "779951b43a4a4ecd30643a7238cbbfc2"
NAME: Final = "headrace-779951b4"
"""Of its cookie."""


class Controllers:
    """Checks passwords as the active controller does."""

    def __init__(self) -> None:
        self.exchange: Any = None
        self.seen: list[pb.LoginRequest] = []

    def __call__(self, request: pb.LoginRequest) -> pb.LoginResponse:
        self.seen.append(pb.LoginRequest.FromString(request.SerializeToString()))
        if not request.exchange_id:
            self.exchange = ServerExchange(request.mechanism, "nonceofserver", b"unknown")
            known = self.exchange.read_user(request.message) == USER.name
            said = self.exchange.first(request.message, USER.password.verifiers if known else ())
            return pb.LoginResponse(message=said, exchange_id="e")
        said, _ = self.exchange.last(request.message)
        description = pb.ApiKeyDescription(id=KEY.id, owner="User:alice", expires_ms=KEY.expires_ms, login=True)
        made = pb.CreateKeyResponse(key=key_text("alice"), description=description)
        return pb.LoginResponse(message=said, made=made)


@dataclass
class Browser:
    """The application, and a browser in front of it."""

    front: Front
    clock: FakeClock
    controllers: Controllers
    client: httpx.AsyncClient
    seals: AesSeals

    async def log_in(self, password: str = CORRECT, **headers: str) -> httpx.Response:
        body = {"user": "alice", "password": password}
        return await self.client.post("/v1/login", json=body, headers=PAGE | headers)

    async def get(self, path: str = "/v1/session", **headers: str) -> httpx.Response:
        return await self.client.get(path, headers={name.replace("_", "-"): v for name, v in headers.items()})


@asynccontextmanager
async def browsing(
    *,
    url: str = "http://127.0.0.1",
    client: tuple[str, int] = ONE,
    limits: Limits = LIMITS,
    rows: Rows = ROWS,
    cluster_id: str = CLUSTER,
    seals: AesSeals | None = None,
) -> AsyncIterator[Browser]:
    async with AsyncExitStack() as stack:
        front = await stack.enter_async_context(opened(rows))
        front.tie.image = replace(front.tie.image, cluster_id=cluster_id)
        clock, controllers, seals = FakeClock(), Controllers(), seals or AesSeals.of_this_process()
        front.behind.answers["Controller/Login"] = controllers
        hosts = Hosts.of(["admin.example"])
        app = rest_app(
            front.engines, limits, ready=lambda: True, hosts=hosts, access=front.access, seals=seals, clock=clock
        )
        transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=client)
        made = await stack.enter_async_context(httpx.AsyncClient(transport=transport, base_url=url))
        yield Browser(front, clock, controllers, made, seals)


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with browsing() as made:
        yield made


@pytest.fixture
async def logged_in(browser: Browser) -> Browser:
    assert (await browser.log_in()).status_code == 200
    browser.front.behind.asked.clear()
    return browser


def is_cleared(answer: httpx.Response) -> bool:
    return "Max-Age=0;" in answer.headers.get("set-cookie", "")


# --- logging in and out ---------------------------------------------------------------------------------------------


async def test_a_login_sets_a_cookie_that_nobody_reads(browser: Browser) -> None:
    answer = await browser.log_in()
    ends = browser.clock.now_ms() + LASTS_MS
    assert answer.json() == {
        "principal": "User:alice",
        "by": "cookie",
        "expires_ms": ends,
        "idle_expires_ms": browser.clock.now_ms() + IDLE_MS,
    }
    cookie = answer.headers["set-cookie"]
    assert re.fullmatch(rf"{NAME}=[\w-]+; Path=/; Max-Age=28800; HttpOnly; SameSite=Lax", cookie)
    assert key_text("alice") not in base64.urlsafe_b64decode(cookie.split(";")[0].partition("=")[2] + "==").decode(
        "latin-1"
    )
    assert (await browser.get()).json()["principal"] == "User:alice"


async def test_by_https_the_cookie_is_of_this_host_alone() -> None:
    async with browsing(url="https://admin.example", client=("10.0.0.9", 1)) as browser:
        cookie = (await browser.log_in()).headers["set-cookie"]
        assert re.fullmatch(rf"__Host-{NAME}=[\w-]+; Path=/; Max-Age=28800; HttpOnly; SameSite=Lax; Secure", cookie)
        assert (await browser.get()).json()["by"] == "cookie"
        cookie = cookie.split(";")[0].partition("=")[2]
        browser.client.cookies.clear()
        answer = await browser.get(cookie=f"{NAME}={cookie}")
        assert answer.status_code == 401, "the other name is for this machine"


async def test_clusters_on_one_machine_have_a_cookie_each() -> None:
    """Browsers send what one of them has set to all ports of its host."""
    async with browsing() as one, browsing(cluster_id="0" * 32) as other:
        for browser in (one, other):
            assert (await browser.log_in()).status_code == 200
        both = "; ".join(f"{name}={text}" for each in (one, other) for name, text in each.client.cookies.items())
        for browser in (one, other):
            browser.client.cookies.clear()
            answer = await browser.get(cookie=both)
            assert (answer.status_code, "set-cookie" in answer.headers) == (200, False)
        left = await one.client.post("/v1/logout", headers=PAGE | {"cookie": both})
        assert (left.status_code, is_cleared(left)) == (204, True)
        assert left.headers["set-cookie"].startswith(f"{NAME}=;")
        assert (await other.get(cookie=both)).status_code == 200
        of_one_alone = both.partition(";")[0]
        assert (await other.get(cookie=of_one_alone)).headers.get("set-cookie") is None, "it is nothing of this cluster"
        renamed = of_one_alone.replace(NAME, f"headrace-{'0' * 8}")
        assert (await other.get(cookie=renamed)).status_code == 401


async def test_the_password_goes_nowhere(browser: Browser, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        for password in (CORRECT, "another fine secret"):
            answer = await browser.log_in(password)
            assert password not in answer.text
            assert all(password.encode() not in one.message for one in browser.controllers.seen)
    assert CORRECT not in caplog.text
    assert "another fine secret" not in caplog.text
    assert {one.host for one in browser.controllers.seen} == {"127.0.0.1"}, "who fails too often waits there"


async def test_a_body_that_is_wrong_does_not_come_back(browser: Browser) -> None:
    answer = await browser.client.post("/v1/login", json={"user": "", "password": "p" * 1_001, "x": 1}, headers=PAGE)
    assert answer.status_code == 400
    assert "ppp" not in answer.text


async def test_a_wrong_password_is_refused_and_leaves_the_login_that_is_there(logged_in: Browser) -> None:
    answer = await logged_in.log_in("wrong, all of it")
    assert (answer.status_code, answer.json()["code"]) == (401, "SASL_AUTHENTICATION_FAILED")
    assert "set-cookie" not in answer.headers
    assert (await logged_in.get()).status_code == 200


async def test_who_answers_without_knowing_the_password_is_no_controller(browser: Browser) -> None:
    def pretend(request: pb.LoginRequest) -> pb.LoginResponse:
        answer = browser.controllers(request)
        return answer if answer.exchange_id else pb.LoginResponse(message=b"v=AAAA", made=answer.made)

    browser.front.behind.answers["Controller/Login"] = pretend
    answer = await browser.log_in()
    assert (answer.status_code, "set-cookie" in answer.headers) == (401, False)


async def test_another_login_takes_the_place_of_the_one_before(logged_in: Browser) -> None:
    before = logged_in.client.cookies[NAME]
    assert (await logged_in.log_in()).status_code == 200
    assert logged_in.client.cookies[NAME] != before


async def test_passwords_are_not_taken_in_plain_text_from_elsewhere() -> None:
    async with browsing(client=("10.0.0.9", 1)) as browser:
        answer = await browser.log_in()
        assert (answer.status_code, browser.controllers.seen) == (400, [])
        assert "HTTPS" in answer.json()["detail"]


async def test_requests_go_on_as_who_has_logged_in(logged_in: Browser) -> None:
    await logged_in.get("/v1/topics")
    [asked] = logged_in.front.behind.asked
    assert (asked.operation, asked.bearer) == ("Controller/ListTopics", key_text("alice"))


async def test_a_logout_ends_the_key_and_takes_the_cookie_away(logged_in: Browser) -> None:
    answer = await logged_in.client.post("/v1/logout", headers=PAGE)
    assert (answer.status_code, is_cleared(answer)) == (204, True)
    [asked] = logged_in.front.behind.asked
    assert (asked.operation, asked.bearer, asked.request.ids) == ("Controller/DeleteKeys", key_text("alice"), [KEY.id])
    assert (await logged_in.get()).status_code == 401


async def test_a_logout_that_fails_leaves_the_cookie(logged_in: Browser) -> None:
    def refuse(_: Any) -> Any:
        raise RuntimeError("the controller is broken")

    logged_in.front.behind.answers["Controller/DeleteKeys"] = refuse
    answer = await logged_in.client.post("/v1/logout", headers=PAGE)
    assert answer.status_code >= 500
    assert not is_cleared(answer)


async def test_who_shows_a_key_is_no_login(browser: Browser) -> None:
    answer = await browser.client.post("/v1/logout", headers=JSON | bearing("bob"))
    assert (answer.status_code, browser.front.behind.asked) == (400, [])
    told = await browser.client.get("/v1/session", headers=bearing("bob"))
    assert told.json() == {"principal": "User:bob", "by": "bearer", "expires_ms": None, "idle_expires_ms": None}


async def test_a_bearer_beside_a_cookie_counts(logged_in: Browser) -> None:
    told = await logged_in.client.get("/v1/session", headers=bearing("bob"))
    assert (told.json()["principal"], told.json()["by"]) == ("User:bob", "bearer")
    refused = await logged_in.client.get("/v1/session", headers={"authorization": "Bearer hrk_wrong"})
    assert (refused.status_code, "set-cookie" in refused.headers) == (401, False)
    changed = await logged_in.client.post("/v1/topics", headers=JSON | bearing("bob"), content=b"{")
    assert changed.status_code == 400, "it needs nothing that a page sends"


async def test_nobody_has_logged_in_to_an_open_cluster() -> None:
    async with browsing(rows=Rows(Mode.OPEN)) as browser:
        nobody = {"principal": "User:ANONYMOUS", "by": "nothing", "expires_ms": None, "idle_expires_ms": None}
        assert (await browser.get()).json() == nobody
        answer = await browser.get(cookie=f"{NAME}=rubbish")
        assert (answer.json(), is_cleared(answer)) == (nobody, True)


# --- how long -------------------------------------------------------------------------------------------------------


async def test_a_key_that_was_taken_back_ends_the_session(logged_in: Browser) -> None:
    logged_in.front.told(replace(ROWS, keys=[]))
    answer = await logged_in.get("/v1/topics")
    assert (answer.status_code, is_cleared(answer)) == (401, True)
    assert NAME not in logged_in.client.cookies


@pytest.mark.parametrize("users", [(), (make_user(id="2" * 16),)])
async def test_a_session_ends_with_its_password_and_its_user(logged_in: Browser, users: tuple[User, ...]) -> None:
    logged_in.front.told(replace(ROWS, users=users))
    answer = await logged_in.get("/v1/topics")
    assert (answer.status_code, is_cleared(answer)) == (401, True)


async def test_a_session_that_is_not_used_is_over_and_one_that_is_goes_on(logged_in: Browser) -> None:
    kept = logged_in.client.cookies[NAME]
    await logged_in.clock.advance(RENEW_MS - 1)
    assert "set-cookie" not in (await logged_in.get()).headers
    await logged_in.clock.advance(1)
    renewed = await logged_in.get()
    assert "Max-Age=28740;" in renewed.headers["set-cookie"]
    assert renewed.json()["idle_expires_ms"] == logged_in.clock.now_ms() + IDLE_MS
    await logged_in.clock.advance(IDLE_MS - RENEW_MS)
    assert (await logged_in.get()).status_code == 200
    logged_in.client.cookies.clear()
    old = await logged_in.get(cookie=f"{NAME}={kept}")
    assert (old.status_code, is_cleared(old)) == (401, True)


async def test_rubbish_is_refused_and_taken_away(browser: Browser) -> None:
    await browser.log_in()
    good = browser.client.cookies[NAME]
    browser.client.cookies.clear()
    flipped = good[:-1] + ("A" if good[-1] != "A" else "B")
    of_others = AesSeals.of_this_process().seal("1 0 0 hrk_x")
    of_a_later_version = browser.seals.seal("2 what it has")
    for wrong in ("x", "?", flipped, good[:20], good * 100, of_others, of_a_later_version):
        answer = await browser.get(cookie=f"{NAME}={wrong}")
        assert (answer.status_code, is_cleared(answer)) == (401, True), wrong
    assert (await browser.get(cookie=f"{NAME}={good}")).status_code == 200


def test_what_a_session_says_of_its_end() -> None:
    session = BrowserSession.begin(Secret("hrk_a b"), 1_000)
    assert BrowserSession.of_text(session.to_text()) == session
    assert "hrk" not in repr(session)
    session.check(1_000 + IDLE_MS - 1)
    with pytest.raises(CredentialsExpired, match="not used for an hour"):
        session.check(1_000 + IDLE_MS)
    used = session.use(1_000 + LASTS_MS - 10)
    assert used is not None
    assert used.idle_ends_ms == used.ends_ms == 1_000 + LASTS_MS
    used.check(1_000 + LASTS_MS - 1)
    with pytest.raises(CredentialsExpired, match="8 hours ago"):
        used.check(1_000 + LASTS_MS)


def test_seals_open_under_both_keys_while_they_are_changed() -> None:
    keys = [b"one"]
    seals = AesSeals(lambda: tuple(keys))
    first = seals.seal("text")
    assert seals.seal("text") != first
    keys[:] = [b"two", b"one"]
    second = seals.seal("text")
    assert (seals.open(first), seals.open(second)) == (("text", True), ("text", False))
    keys[:] = [b"two"]
    assert (seals.open(first), seals.open(second)) == (None, ("text", False))


async def test_a_session_that_is_used_while_the_key_is_changed_goes_on() -> None:
    """However soon after the login: its cookie is sealed anew before the key of before is gone."""
    keys = [b"one"]
    async with browsing(seals=AesSeals(lambda: tuple(keys))) as browser:
        await browser.log_in()
        cookies, rests = set[str](), dict(browser.client.cookies)
        for now in ([b"one", b"two"], [b"two", b"one"], [b"two", b"one"], [b"two"]):
            keys[:] = now
            answer = await browser.get()
            assert answer.status_code == 200
            cookies.add(answer.headers.get("set-cookie", ""))
        assert len(cookies) == 2, "once, and else there is nothing to say"
        browser.client.cookies.clear()
        [(name, text)] = rests.items()
        answer = await browser.get(cookie=f"{name}={text}")
        assert (answer.status_code, is_cleared(answer)) == (401, True), "who was not there meanwhile logs in again"


# --- pages of others ------------------------------------------------------------------------------------------------

OWN: Final = {"origin": "http://127.0.0.1", "sec-fetch-site": "same-origin"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (PAGE, 400),
        (PAGE | OWN, 400),
        (PAGE | {"sec-fetch-site": "none"}, 400),
        (JSON, 403),
        ({"x-headrace-request": "1"}, 415),
        (PAGE | {"content-type": "text/plain"}, 415),
        (PAGE | OWN | {"origin": "http://127.0.0.1:3000"}, 403),
        (PAGE | OWN | {"origin": "https://evil.example"}, 403),
        (PAGE | OWN | {"origin": "null"}, 403),
        (PAGE | {"sec-fetch-site": "same-site"}, 403),
        (PAGE | {"sec-fetch-site": "cross-site"}, 403),
        (PAGE | {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, 403),
    ],
)
async def test_changes_by_a_cookie_come_from_our_own_pages(
    logged_in: Browser, headers: Mapping[str, str], status: int
) -> None:
    """400: it got as far as its body, which is broken."""
    for path in ("/v1/topics", "/v1/login"):
        answer = await logged_in.client.post(path, headers=headers, content=b"{")
        assert answer.status_code == status, answer.text
        assert not [name for name in answer.headers if name.startswith("access-control")]
    assert logged_in.front.behind.asked == []
    assert not is_cleared(answer), "no other page logs anybody out"


async def test_other_pages_may_lead_here_and_read_nothing(logged_in: Browser) -> None:
    for site in ("same-site", "cross-site"):
        assert (await logged_in.get("/v1/topics", sec_fetch_site=site, sec_fetch_mode="no-cors")).status_code == 403
        link = {"sec_fetch_site": site, "sec_fetch_mode": "navigate"}
        assert (await logged_in.get("/docs", **link)).status_code == 200
        assert (await logged_in.get("/docs", **link, sec_fetch_dest="document")).status_code == 200
        for dest in ("iframe", "frame", "embed", "object", ""):
            assert (await logged_in.get("/docs", **link, sec_fetch_dest=dest)).status_code == 403, dest
    preflight = await logged_in.client.options("/v1/topics", headers={"origin": "https://evil.example"})
    assert preflight.status_code == 405


async def test_by_a_name_that_was_led_here_nobody_is_asked_who_they_are(browser: Browser) -> None:
    """A page may send any header to a name of its own, and would read the answer."""
    html = {"accept": "text/html"}
    for path in ("/docs", "/v1/session", "/v1/topics", "/health/live", "/nothing"):
        for more in (html, bearing("bob"), {"authorization": "Bearer hrk_guessed"}):
            answer = await browser.client.get(path, headers={"host": "evil.example"} | more)
            assert (answer.status_code, "evil.example" in answer.text) == (421, True), (path, more)


async def test_no_page_logs_somebody_in_as_somebody_else(browser: Browser) -> None:
    body = b'{"user": "alice", "password": "correct horse battery"}'
    for headers in (JSON | {"origin": "https://evil.example"}, {"content-type": "text/plain"}):
        answer = await browser.client.post("/v1/login", headers=headers, content=body)
        assert answer.status_code in {403, 415}
        assert "set-cookie" not in answer.headers


# --- what every answer says -----------------------------------------------------------------------------------------


async def test_every_answer_is_safe_for_browsers(logged_in: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(logged_in.front.engines.statuses, "now", broken)
    statuses = set()
    for path in (
        "/v1/session",
        "/docs",
        "/openapi.json",
        "/health/live",
        "/health/cluster",
        "/nothing",
        "/v1/topics/%00",
    ):
        answer = await logged_in.get(path)
        statuses.add(answer.status_code)
        for name, value in SAFE_HEADERS.items():
            if (name, path) != ("content-security-policy", "/docs"):
                assert answer.headers[name] == value, path
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert "strict-transport-security" not in answer.headers
    assert {200, 404, 500} <= statuses


@pytest.mark.parametrize(("url", "strict"), [("https://admin.example", True), ("https://127.0.0.1", False)])
async def test_by_https_a_name_of_our_own_stays_with_it(url: str, strict: bool) -> None:
    async with browsing(url=url) as browser:
        assert ("strict-transport-security" in (await browser.get()).headers) is strict


async def test_the_page_says_how_to_log_in_and_works_then(browser: Browser) -> None:
    html = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    page = await browser.get("/docs", **html)
    assert (page.status_code, page.headers["content-type"]) == (401, "text/html; charset=utf-8")
    assert "Log in with a user and its password" in page.text
    assert (await browser.get("/docs")).headers["content-type"] == "application/problem+json"
    assert (await browser.get("/openapi.json", **html)).headers["content-type"] == "application/problem+json"
    await browser.log_in()
    docs = await browser.get("/docs", **html)
    assert (docs.status_code, (await browser.get("/openapi.json")).status_code) == (200, 200)
    for one in (page, docs):
        assert_page_works(one)


def assert_page_works(page: httpx.Response) -> None:
    """All that the page has is named by its policy, and it loads nothing."""
    policy = page.headers["content-security-policy"]
    for tag in ("script", "style"):
        [inline] = re.findall(f"<{tag}>(.*?)</{tag}>", page.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert not re.search(r"<(link|img|iframe)|\bon\w+=|\bsrc=|style=|javascript:", page.text)


# --- how fast -------------------------------------------------------------------------------------------------------

SLOW: Final = replace(LIMITS, http_requests_per_second=2, http_strangers_per_second=1, http_reads_per_second=1)


async def statuses(ask: Callable[[], Any], times: int) -> list[int]:
    return [(await ask()).status_code for _ in range(times)]


async def test_who_asks_too_fast_is_told_when_to_come_again() -> None:
    async with browsing(limits=SLOW) as browser:
        once = 2 * BUCKET_S + 1

        def ask(who: str = "bob", path: str = "/v1/session") -> Any:
            return browser.client.get(path, headers=bearing(who))

        assert await statuses(ask, once + 1) == [200] * once + [429]
        slow = await ask()
        assert (slow.json()["code"], slow.headers["retry-after"]) == ("THROTTLING_QUOTA_EXCEEDED", "1")
        assert (await ask("alice")).status_code == 200, "of others nothing is counted"
        await browser.clock.advance(1_000)
        assert await statuses(ask, 3) == [200, 200, 429]


async def test_strangers_are_counted_by_address() -> None:
    async with browsing(limits=SLOW) as browser:
        once = BUCKET_S + 1
        wrong = {"authorization": "Bearer hrk_wrong"}
        assert await statuses(lambda: browser.client.get("/v1/topics", headers=wrong), once) == [401] * once
        assert await statuses(browser.log_in, 1) == [429], "nor are passwords tried"
        assert (await browser.get("/health/cluster")).status_code == 429
        assert (await browser.get("/health/ready")).status_code == 200, "it has to be found by who runs it"
        assert (await browser.client.get("/v1/session", headers=bearing("bob"))).status_code == 200
        browser.front.told(Rows(Mode.OPEN))
        assert await statuses(lambda: browser.get("/health/cluster"), 3) == [200] * 3
