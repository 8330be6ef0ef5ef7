"""Settings of the source ``http-source``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from headrace_common.core.ids import Endpoint
from headrace_connect.connectors.http.addresses import check_headers
from headrace_connect.connectors.http.window import SIZE_MAX
from headrace_connect.settings import Secret, blame, setting

WINDOWS_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """Of the source ``http-source``."""

    listen: str = "127.0.0.1:8088"
    """Where requests come: ``HOST:PORT``. Other machines reach it only if this is an address that they reach."""
    route: str = "/"
    """Of the URL: requests for others are answered with 404."""
    format: Literal["json", "text", "bytes"] = "json"
    """What a body is. ``text`` and ``bytes`` stay as they came, with the converter ``string`` or ``bytes``."""
    batch: Literal["none", "array", "lines"] = "none"
    """Several records in a body. ``array``: a JSON array has one in each element. ``lines``: each line is one."""
    signature_secret: Secret | None = None
    """What only senders know. Empty: whoever reaches the address may write."""
    signature_secret_previous: Secret | None = None
    """Another one that is taken too, while senders change theirs."""
    signature_header: str = "X-Hub-Signature-256"
    """The header that proves it."""
    signature_form: Literal["hub", "hex", "base64", "token"] = "hub"
    """``hub``: ``sha256=`` and the HMAC of the body in hex, as GitHub has it. ``hex``, ``base64``: the HMAC alone.
    ``token``: the secret itself, as GitLab has it."""
    signature_algorithm: Literal["sha256", "sha512", "sha1"] = "sha256"
    """Of the HMAC."""
    id_header: str = ""
    """A header that names the request, as ``X-GitHub-Delivery``: one that comes again is answered, and not written
    again. Empty: each request counts."""
    id_window: int = setting(256, low=1, high=SIZE_MAX * WINDOWS_MAX)
    """About so many ids are known, the last ones, across restarts too. Each 320 of them are a position."""
    tasks_max: int = 1
    """Of the connector; 1 where ``id.window`` is more than 320, for one task has to know all ids."""
    headers_include: tuple[str, ...] = ()
    """Headers of requests that become headers of records."""
    body_bytes_max: int = setting(512 << 10, low=1, high=16 << 20)
    """Of one request, 413 beyond; and of each record as it is written as JSON, 400 beyond. The topic has to take so
    large records."""
    body_timeout_ms: int = setting(10_000, low=100, high=3_600_000)
    """How long a body may take to come; 408 beyond."""
    answer_timeout_ms: int = setting(30_000, low=100, high=3_600_000)
    """How long a sender waits for the commit; 503 beyond."""
    queue_requests: int = setting(1_000, low=1, high=100_000)
    """Requests that are read or wait for their commit, at most; 429 beyond."""
    queue_bytes: int = setting(16 << 20, low=1_024, high=1 << 30)
    """Bytes of their bodies, at most; 429 beyond."""
    retry_after_s: int = setting(1, low=0, high=86_400)
    """What ``Retry-After`` says with 429 and 503."""
    connections_per_address: int = setting(0, low=0, high=100_000)
    """Open connections of one address; 0: no limit, as behind a proxy, where all come from one."""

    def __post_init__(self) -> None:
        with blame("listen"):
            self.endpoint  # noqa: B018 - says what is wrong
        if not self.route.startswith("/") or "?" in self.route or not self.route.isprintable():
            raise ValueError("route begins with / and has no query, as /hooks/orders")
        for key, name in (("signature.header", self.signature_header), ("id.header", self.id_header or "x")):
            _check_name(key, name)
        for name in self.headers_include:
            _check_name("headers.include", name)
        if self.batch == "array" and self.format != "json":
            raise ValueError("batch=array needs format=json")
        if self.signature_secret is not None and not self.signature_secret:
            raise ValueError("signature.secret is empty, so anybody knows it")
        if self.signature_secret_previous is not None and self.signature_secret is None:
            raise ValueError("signature.secret.previous needs signature.secret")
        if self.windows > 1 and self.tasks_max > 1:
            raise ValueError(f"id.window above {SIZE_MAX} needs tasks.max=1: one task has to know all ids")
        if self.body_bytes_max > self.queue_bytes:
            raise ValueError("body.bytes.max is more than queue.bytes, so the largest body would never be taken")

    @property
    def endpoint(self) -> Endpoint:
        """
        Where it listens.

        Raises:
            ValueError: it is none.
        """
        return Endpoint.parse(self.listen)

    @property
    def windows(self) -> int:
        """Over so many positions the ids are dealt out."""
        return -(-self.id_window // SIZE_MAX)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Any of them proves who sends; none: nobody has to."""
        given = (self.signature_secret, self.signature_secret_previous)
        return tuple(secret.reveal() for secret in given if secret)


def _check_name(key: str, name: str) -> None:
    try:
        check_headers({name: ""})
    except ValueError:
        raise ValueError(f"{key}: {name[:80]!r} is no header of a request that can be used") from None
