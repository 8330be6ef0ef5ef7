"""Where polling is, what is asked there, and what an answer says of how to go on. No I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit, urlunsplit

from headrace_connect.connectors.http.client import Answer
from headrace_connect.connectors.http.poll_settings import PollSettings
from headrace_connect.plugin import Position

Scalar: TypeAlias = str | int | float
_LINK: Final = re.compile(r'<([^<>]*)>((?:[^,"]|"[^"]*")*)')
_NEXT: Final = re.compile(r';\s*rel\s*=\s*"?(?:[^";]*\s)?next(?:\s[^";]*)?"?\s*(?:;|$)', re.IGNORECASE)
_NAMES_MAX: Final = 10
_URL_CHARS_MAX: Final = 2_000


class BadAnswer(Exception):
    """It is not what the settings say; another one may be."""


@dataclass(frozen=True, slots=True)
class Place:
    """Behind a page. A round is all pages from one start to the end."""

    cursor: Scalar | None = None
    """What goes on, with ``paging=cursor``."""
    page: str | None = None
    """The next page's URL, with ``paging=link``."""
    since: Scalar | None = None
    """The largest value of ``since.field`` before this round."""
    largest: Scalar | None = None
    """The same, with the pages of this round that were read."""
    etag: str | None = None
    modified: str | None = None
    """What the last answer said, where it is all that there is."""

    def to_json(self) -> Position:
        """What is there of it."""
        fields = ("cursor", "page", "since", "largest", "etag", "modified")
        return {name: value for name in fields if (value := getattr(self, name)) is not None}

    @classmethod
    def from_json(cls, position: Position | None) -> Place:
        """
        Raises:
            ValueError: it is none.
        """
        if position is None:
            return cls()
        scalars, texts = {"cursor", "since", "largest"}, {"page", "etag", "modified"}
        for name, value in position.items():
            is_right = (name in texts and isinstance(value, str)) or (name in scalars and is_scalar(value))
            if not is_right:
                raise ValueError(f"{str(dict(position))[:200]} is no position of a polled URL")
        return cls(**position)


@dataclass(frozen=True, slots=True)
class Page:
    """One answer."""

    records: Sequence[Any]
    place: Place
    """Behind it."""
    more: bool
    """Whether there may be a further page now."""


def is_scalar(value: object) -> bool:
    """Whether it can be a parameter and in a position."""
    return isinstance(value, str | int | float) and not isinstance(value, bool) and not _is_beyond(value)


def _is_beyond(value: object) -> bool:
    return isinstance(value, int) and not -(2**63) <= value < 2**63


def request_of(settings: PollSettings, place: Place) -> tuple[str, dict[str, str]]:
    """The URL that is asked at a place, and headers."""
    headers = {
        name: value for name, value in (("if-none-match", place.etag), ("if-modified-since", place.modified)) if value
    }
    if place.page is not None:
        return place.page, headers
    given = {}
    if place.since is not None:
        given[settings.since_param] = str(place.since)
    if place.cursor is not None:
        given[settings.cursor_param] = str(place.cursor)
    return _with_query(settings.url, given), headers


def read_page(settings: PollSettings, place: Place, url: str, answer: Answer) -> Page:
    """
    What an answer with status 200 has.

    Raises:
        BadAnswer: it is not what the settings say.
    """
    if not answer.body.strip():  # as with status 204
        return Page((), place if place.cursor is not None else _round_ended(place), False)
    value = _parse(settings, answer.body)
    records = _records(settings, value)
    largest = _largest(settings, place.largest if place.largest is not None else place.since, records)
    behind = replace(place, largest=largest)
    if settings.paging == "cursor":
        cursor = _next(settings, value)
        if cursor is None:
            return Page(records, _round_ended(behind), False)
        if records and cursor == place.cursor:
            raise BadAnswer(f"the cursor is {str(cursor)[:200]!r} again behind a page with records: it would not end")
        return Page(records, replace(behind, cursor=cursor), bool(records))
    if settings.paging == "link":
        page = _next_url(settings, value, url, answer)
        if page is not None:
            return Page(records, replace(behind, page=page), True)
        return Page(records, _round_ended(behind), False)
    if settings.since_field:
        return Page(records, _round_ended(behind), False)
    return Page(records, Place(etag=answer.headers.get("etag"), modified=answer.headers.get("last-modified")), False)


def _round_ended(place: Place) -> Place:
    """The next round begins; it asks for what is later than this one."""
    return Place(since=place.largest)


def _parse(settings: PollSettings, body: bytes) -> Any:
    try:
        if settings.format == "ndjson":
            return [_loads(line) for line in body.splitlines() if line.strip()]
        return _loads(body)
    except (ValueError, RecursionError) as error:
        raise BadAnswer(f"the answer is not JSON: {error}; it begins with {body[:80]!r}") from None


def _loads(text: bytes) -> Any:
    return json.loads(text.decode("utf-8"), parse_constant=_constant)


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _records(settings: PollSettings, value: Any) -> list[Any]:
    found = _field(value, settings.records_field) if settings.records_field else value
    if found is None and settings.records_field:
        names = ", ".join(list(value)[:_NAMES_MAX]) if isinstance(value, dict) else type(value).__name__
        raise BadAnswer(
            f"the answer has no {settings.records_field}; records.field is wrong, or it is another: {names}"
        )
    records = found if isinstance(found, list) else [found]
    if None in records:
        raise BadAnswer("a record is null")
    return records


def _largest(settings: PollSettings, largest: Scalar | None, records: Sequence[Any]) -> Scalar | None:
    if not settings.since_field:
        return None
    for record in records:
        value = _field(record, settings.since_field)
        if not is_scalar(value):
            raise BadAnswer(
                f"a record has no {settings.since_field} that is a text or a number of 64 bits: {str(record)[:200]}"
            )
        if largest is not None and isinstance(value, str) != isinstance(largest, str):
            raise BadAnswer(f"{settings.since_field} is a text in one record and a number in another")
        largest = value if largest is None or value > largest else largest
    return largest


def _field(value: Any, names: str) -> Any:
    for name in names.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _next(settings: PollSettings, value: Any) -> Scalar | None:
    """
    What ``next.field`` says; None: nothing.

    Raises:
        BadAnswer: it is nothing that can be asked with.
    """
    found: Any = _field(value, settings.next_field)
    if found is None or found is False or found == "":
        return None
    if _is_beyond(found):
        return str(found)
    if not is_scalar(found):
        raise BadAnswer(f"next.field is wrong: {settings.next_field} is no text and no number, but {str(found)[:200]}")
    scalar: Scalar = found
    return scalar


def _next_url(settings: PollSettings, value: Any, url: str, answer: Answer) -> str | None:
    """
    Raises:
        BadAnswer: it is no URL, or on another server, who would be told the authorization.
    """
    found = _next(settings, value) if settings.next_field else _linked(answer.headers.get("link", ""))
    if not found:
        return None
    page = urljoin(url, str(found))
    try:
        same = urlsplit(page)[:2] == urlsplit(settings.url)[:2]
    except ValueError:
        same = False
    if not same or len(page) > _URL_CHARS_MAX or page == url:
        why = (
            "is too long"
            if len(page) > _URL_CHARS_MAX
            else "is the page itself"
            if page == url
            else "is on another server"
        )
        raise BadAnswer(f"the next page, {page[:200]}, {why}")
    return page


def _linked(header: str) -> str | None:
    for target, parameters in _LINK.findall(header):
        if _NEXT.search(parameters):
            return str(target)
    return None


def _with_query(url: str, given: Mapping[str, str]) -> str:
    """With these parameters, which replace others of their names."""
    if not given:
        return url
    parts = urlsplit(url)
    kept = [(name, value) for name, value in parse_qsl(parts.query, keep_blank_values=True) if name not in given]
    return urlunsplit(parts._replace(query=urlencode([*kept, *given.items()])))
