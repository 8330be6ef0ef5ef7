"""Settings of the sink ``http-sink``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from headrace_connect.connectors.http.addresses import check_header_value, check_headers, check_url
from headrace_connect.settings import Secret, setting

TOPIC: Final = "${topic}"
_NAME_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """Of the sink ``http-sink``."""

    url: str
    """Where records are sent: ``https://api.example.org/orders``. ``${topic}`` is the topic's name."""
    method: Literal["POST", "PUT", "PATCH"] = "POST"
    """Of each request."""
    format: Literal["json", "ndjson", "single"] = "json"
    """What a request has. ``json``: an array of records. ``ndjson``: a line for each. ``single``: one record; a value
    that is text or bytes is the body as it is."""
    record: Literal["value", "envelope"] = "value"
    """What is sent of a record. ``envelope``: an object with ``id``, ``topic``, ``partition``, ``offset``,
    ``timestamp``, ``key``, ``value`` and ``headers``."""
    batch_records: int = setting(500, low=1, high=100_000)
    """Records of a request at most."""
    batch_bytes: int = setting(1 << 20, low=1_024, high=64 << 20)
    """Bytes of a request's body at most; a single record may be larger."""
    null_values: Literal["refuse", "skip", "send"] = "refuse"
    """What becomes of a record without a value. ``refuse``: it is bad. ``send``: as null."""
    authorization: Secret | None = None
    """The header ``Authorization``, whole: ``Bearer ${file:/etc/headrace/api:token}``."""
    headers: Mapping[str, str] = setting(prefix="headers.")
    """Further headers of each request: ``headers.X-Tenant=shop``."""
    idempotency: Literal["none", "request", "record"] = "none"
    """What the target does with what it is sent again. ``none``: it takes it again. ``request``: it knows a request
    again by ``idempotency.header``; needs ``format=single``. ``record``: it knows each record again, by the ``id`` of
    ``record=envelope`` or by its value."""
    idempotency_header: str = "Idempotency-Key"
    """The header with the topic, partition and offsets of what a request has. Empty: none is sent."""
    idempotency_prefix: str = ""
    """What each of those keys, and each ``id``, begins with. Set another one when a topic was deleted and made again:
    its offsets begin anew."""
    timeout_ms: int = setting(30_000, low=100, high=3_600_000)
    """How long a request may take, with its answer."""
    check_method: Literal["OPTIONS", "HEAD", "GET", "none"] = "OPTIONS"
    """What ``validate`` asks the target; ``none``: it is only connected to."""
    tls_ca: str = setting("", key="tls.ca")
    """Certificates, as PEM, that are trusted instead of the machine's: ``${dir:/etc/headrace:ca.pem}``."""

    def __post_init__(self) -> None:
        check_url(self.url.replace(TOPIC, "topic"))
        check_headers(self.headers)
        if self.authorization is not None:
            check_header_value("authorization", self.authorization.reveal())
        if self.idempotency_header:
            check_headers({self.idempotency_header: ""})
        if len(self.idempotency_prefix) > _NAME_MAX:
            raise ValueError(f"idempotency.prefix has at most {_NAME_MAX} characters")
        check_header_value("idempotency.prefix", self.idempotency_prefix)
        if self.idempotency == "request" and self.format != "single":
            raise ValueError(
                "idempotency=request needs format=single: after a restart records are put into other batches, which "
                "the target cannot know again"
            )
        if self.idempotency == "request" and not self.idempotency_header:
            raise ValueError("idempotency=request needs idempotency.header")

    def url_of(self, topic: str) -> str:
        """Where records of a topic go; its name has no characters that mean something there."""
        return self.url.replace(TOPIC, topic)
