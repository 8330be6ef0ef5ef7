"""Settings of the source ``http-poll-source``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from headrace_connect.connectors.http.addresses import check_header_value, check_headers, check_url
from headrace_connect.settings import Secret, setting


@dataclass(frozen=True, slots=True)
class PollSettings:
    """Of the source ``http-poll-source``."""

    url: str
    """What is asked, with ``GET``."""
    interval_ms: int = setting(60_000, low=10, high=86_400_000)
    """How long to wait when there was nothing more, in ms."""
    format: Literal["json", "ndjson"] = "json"
    """What an answer is."""
    records_field: str = ""
    """Where the records are in JSON, with dots between names: ``data.items``. Empty: the whole is a list of records, or
    one record."""
    paging: Literal["none", "link", "cursor"] = "none"
    """How there is more. ``link``: the header ``Link`` has ``rel="next"``, or ``next.field`` is a URL. ``cursor``:
    ``next.field`` is what ``cursor.param`` is next time."""
    next_field: str = ""
    """Where an answer says how to go on, with dots between names."""
    cursor_param: str = "cursor"
    """The parameter of the query that has the cursor."""
    since_field: str = ""
    """A field of records that grows, as ``updated_at``, with dots between names. Empty: there is none."""
    since_param: str = "since"
    """The parameter of the query that has the largest one of the last round: what is later is answered."""
    authorization: Secret | None = None
    """The header ``Authorization``, whole: ``Bearer ${file:/etc/headrace/api:token}``."""
    headers: Mapping[str, str] = setting(prefix="headers.")
    """Further headers of each request: ``headers.Accept=application/json``."""
    answer_bytes_max: int = setting(8 << 20, low=1_024, high=16 << 20)
    """Of one answer, as it is when it is decompressed."""
    timeout_ms: int = setting(30_000, low=100, high=3_600_000)
    """How long a request may take, with its answer."""
    tls_ca: str = setting("", key="tls.ca")
    """Certificates, as PEM, that are trusted instead of the machine's: ``${dir:/etc/headrace:ca.pem}``."""

    def __post_init__(self) -> None:
        check_url(self.url)
        check_headers(self.headers)
        if self.authorization is not None:
            check_header_value("authorization", self.authorization.reveal())
        if self.paging == "cursor" and not (self.next_field and self.cursor_param):
            raise ValueError("paging=cursor needs next.field, where the next cursor is, and cursor.param")
        if self.paging == "none" and self.next_field:
            raise ValueError("next.field is not used with paging=none")
        if self.since_field and not self.since_param:
            raise ValueError("since.field needs since.param")
        if self.format == "ndjson" and (self.records_field or self.next_field):
            raise ValueError("format=ndjson has a record in each line, and no records.field or next.field")
