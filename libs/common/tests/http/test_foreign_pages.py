"""Which requests may pass the gate where changes without a body need no content type."""

from __future__ import annotations

import pytest
from starlette.datastructures import Headers

from headrace_common.http.foreign_pages import Hosts, find_host_refusal, find_refusal

OWN = {"host": "127.0.0.1:8083"}


def status(method: str, *, bodiless: bool = True, **more: str) -> int | None:
    headers = Headers({**OWN, **{name.replace("_", "-"): value for name, value in more.items()}})
    refusal = find_refusal(method, headers, Hosts(), bodiless=bodiless)
    return None if refusal is None else refusal.status


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_without_a_body_and_a_type(method: str) -> None:
    assert status(method) is None
    assert status(method, content_length="0") is None
    assert status(method, bodiless=False) == 415


@pytest.mark.parametrize("said", [{"content_length": "10"}, {"transfer_encoding": "chunked"}, {"content_length": "x"}])
def test_a_body_needs_its_type(said: dict[str, str]) -> None:
    assert status("POST", **said) == 415
    assert status("POST", **said, content_type="text/plain") == 415
    assert status("POST", **said, content_type="Application/JSON; charset=utf-8") is None


@pytest.mark.parametrize(
    "said",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec_fetch_site": "cross-site"},
        {"origin": "http://127.0.0.1:8084"},
    ],
)
def test_pages_of_others(said: dict[str, str]) -> None:
    assert status("POST", **said) == 403
    assert status("POST", content_type="application/json", content_length="2", **said) == 403
    assert status("GET", **said) is None


def test_its_own_page() -> None:
    assert status("POST", origin="http://127.0.0.1:8083", sec_fetch_site="same-origin") is None


def test_how_a_name_is_added_is_said() -> None:
    refusal = find_host_refusal(Headers({"host": "a.example"}), Hosts.of([], "--names"))
    assert refusal is not None
    assert "--names" in refusal.next_step
