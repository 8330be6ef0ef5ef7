"""Schemas of a registry, over Confluent's REST interface: one connection for each call, so that none can grow old."""

from __future__ import annotations

import ssl
from base64 import b64encode
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

import orjson

from headrace.errors import InvalidConfig
from headrace_common.runtime.clock import Clock, SystemClock
from headrace_streams.core.errors import RegistryRefused, RegistryUnavailable
from headrace_streams.core.formats.framing import Reference, SchemaText

_CONNECT_S: Final = 2.0
_ANSWER_S: Final = 7.0
"""Both together are less than what a worker takes for new trouble (10 s)."""
_ANSWER_BYTES_MAX: Final = 16 << 20
_UNKNOWN_MS: Final = 10_000.0
"""An id that was not there is not asked for again for so long."""
_UNKNOWN_MAX: Final = 10_000
_REFERENCES_DEPTH_MAX: Final = 20
_NOT_THERE: Final = (40401, 40402, 40403)
"""How registries say that there is no such subject, version or schema."""
_CONTENT: Final = "application/vnd.schemaregistry.v1+json"


class SchemaRegistry:
    """
    A registry at a URL; satisfies ``Schemas``. Used by one thread at a time.

    A user and a password are part of the URL: ``https://user:password@registry:8081``.
    """

    def __init__(
        self, url: str, *, token: str | None = None, ca_file: str | None = None, clock: Clock | None = None
    ) -> None:
        """
        Args:
            token: is sent as ``Authorization: Bearer``.
            ca_file: certificates to trust, PEM; None: those of the system.

        Raises:
            InvalidConfig: this is no address of a registry.
        """
        # What was given is not repeated: it may hold a password.
        wrong = InvalidConfig("registry= is not the URL of a registry; write it like http://registry:8081")
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise wrong from None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise wrong
        self._secure = parts.scheme == "https"
        self._host, self._port, self._path = parts.hostname, port, parts.path.rstrip("/")
        self._headers = {"Accept": f"{_CONTENT}, application/json", "Content-Type": _CONTENT}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        elif parts.username is not None:
            both = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {b64encode(both.encode()).decode()}"
        self._tls = ssl.create_default_context(cafile=ca_file) if self._secure else None
        self._clock = clock or SystemClock()
        self._known: dict[int, SchemaText] = {}
        self._unknown: dict[int, float] = {}
        host = f"[{self._host}]" if ":" in self._host else self._host
        self._url = f"{parts.scheme}://{host}{'' if port is None else f':{port}'}{self._path}"

    @property
    def url(self) -> str:
        """See ``Schemas``."""
        return self._url

    def by_id(self, schema_id: int) -> SchemaText | None:
        """See ``Schemas``."""
        if schema_id in self._known:
            return self._known[schema_id]
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._unknown.get(schema_id, float("-inf")) < _UNKNOWN_MS:
            return None
        answer = self._ask("GET", f"/schemas/ids/{schema_id}")
        if answer is None:
            if len(self._unknown) >= _UNKNOWN_MAX:
                self._unknown.clear()
            self._unknown[schema_id] = now_ms
            return None
        self._known[schema_id] = self._schema(answer)
        return self._known[schema_id]

    def latest(self, subject: str) -> SchemaText | None:
        """See ``Schemas``."""
        answer = self._ask("GET", f"/subjects/{quote(subject, safe='')}/versions/latest")
        return None if answer is None else self._schema(answer)

    def register(self, subject: str, schema: SchemaText) -> int:
        """See ``Schemas``."""
        path = f"/subjects/{quote(subject, safe='')}/versions"
        answer = self._ask("POST", path, _body(schema))
        if answer is None:
            raise RegistryRefused(
                f"{self._url} does not register schemas: POST {path} finds nothing; is it a registry?"
            )
        return self._number(answer, "id")

    def find(self, subject: str, schema: SchemaText) -> int | None:
        """See ``Schemas``."""
        answer = self._ask("POST", f"/subjects/{quote(subject, safe='')}", _body(schema))
        return None if answer is None else self._number(answer, "id")

    def _schema(self, answer: dict[str, Any], depth: int = 0) -> SchemaText:
        text, kind = answer.get("schema"), answer.get("schemaType") or "AVRO"
        listed = answer.get("references") or []
        if not isinstance(text, str) or not isinstance(kind, str) or not isinstance(listed, list):
            raise self._odd(answer)
        if listed and depth >= _REFERENCES_DEPTH_MAX:
            raise RegistryRefused(f"{self._url}: a schema refers to others more than {_REFERENCES_DEPTH_MAX} deep")
        return SchemaText(kind, text, tuple(self._reference(one, depth + 1) for one in listed))

    def _reference(self, given: Any, depth: int) -> Reference:
        name, subject = (given.get("name"), given.get("subject")) if isinstance(given, dict) else (None, None)
        if not isinstance(name, str) or not isinstance(subject, str):
            raise self._odd(given)
        version = self._number(given, "version")
        answer = self._ask("GET", f"/subjects/{quote(subject, safe='')}/versions/{version}")
        if answer is None:
            raise RegistryRefused(
                f"{self._url}: version {version} of subject {subject!r}, which a schema uses, is gone"
            )
        return Reference(name, subject, version, self._schema(answer, depth))

    def _number(self, answer: dict[str, Any], name: str) -> int:
        found = answer.get(name)
        if type(found) is not int or not 0 <= found < 1 << 32:
            raise self._odd(answer)
        return found

    def _odd(self, answer: Any) -> RegistryUnavailable:
        return RegistryUnavailable(f"{self._url} answered {answer!r:.100}, as no schema registry does")

    def _ask(self, method: str, path: str, body: bytes | None = None) -> dict[str, Any] | None:
        """
        An object; None: what was asked for is not there.

        Raises:
            RegistryUnavailable: nobody answers, or not now.
            RegistryRefused: it does not allow this.
        """
        status, raw = self._exchange(method, path, body)
        try:
            answer = orjson.loads(raw)
        except orjson.JSONDecodeError:
            answer = None
        told = answer if isinstance(answer, dict) else {}
        if status == 200 and isinstance(answer, dict):
            return answer
        if status == 404 and told.get("error_code") in _NOT_THERE:
            return None
        message = f"{self._url}: {method} {path} was answered with {status}: {told.get('message', raw[:100])!s:.300}"
        if status in (401, 403):
            raise RegistryRefused(
                f"{message}; say who asks, with user:password@ in the URL or token= of SchemaRegistry"
            )
        if status in (409, 422):
            raise RegistryRefused(f"{message}; mend the schema, or the compatibility that the subject asks for")
        if status in (200, 429) or status >= 500:
            raise RegistryUnavailable(message)
        raise RegistryRefused(f"{message}; is this the address of a schema registry?")

    def _exchange(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        try:
            connection = self._connection()
            try:
                connection.connect()
                connection.sock.settimeout(_ANSWER_S)
                connection.request(method, self._path + path, body, self._headers)
                response = connection.getresponse()
                return response.status, response.read(_ANSWER_BYTES_MAX)
            finally:
                connection.close()
        except (OSError, HTTPException) as failed:
            raise RegistryUnavailable(
                f"the schema registry at {self._url} does not answer: {failed or type(failed).__name__}"
            ) from failed

    def _connection(self) -> HTTPConnection:
        if self._tls is not None:
            return HTTPSConnection(self._host, self._port, timeout=_CONNECT_S, context=self._tls)
        return HTTPConnection(self._host, self._port, timeout=_CONNECT_S)


def _body(schema: SchemaText) -> bytes:
    body: dict[str, Any] = {"schema": schema.text}
    if schema.kind != "AVRO":  # what nothing is said of is Avro, for registries that know nothing else too
        body["schemaType"] = schema.kind
    if schema.references:
        body["references"] = [
            {"name": one.name, "subject": one.subject, "version": one.version} for one in schema.references
        ]
    return orjson.dumps(body)
