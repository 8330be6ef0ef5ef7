"""
Objects that are made only where there is none: Arrow's file systems cannot do that, obstore can.

On S3 it is ``If-None-Match: *``. Credentials are those of the environment, of a web identity, or of the machine.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from headrace_common.core.errors import InvalidConfig
from headrace_connect.plugin import RetriableError

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_TIMEOUT: Final = timedelta(seconds=30)
_RETRIES_MAX: Final = 3
_SCHEMES: Final = {"gcs": "gs"}


@dataclass(frozen=True, slots=True)
class BucketUrl:
    """A URL as Arrow has it, taken apart."""

    scheme: str
    host: str
    """The bucket, or container and account."""
    path: str
    """Without a slash before and behind."""
    options: dict[str, str]
    """What is behind the question mark."""
    user: str = ""
    """Of S3: key and secret, with a colon between."""

    @classmethod
    def of(cls, url: str) -> BucketUrl:
        """Of a URL that ``check_url`` takes."""
        parts = urlsplit(url)
        scheme = _SCHEMES.get(parts.scheme, parts.scheme)
        user, _, host = parts.netloc.rpartition("@") if scheme == "s3" else ("", "", parts.netloc)
        return cls(scheme, host, parts.path.strip("/"), dict(parse_qsl(parts.query)), user)

    @property
    def plain(self) -> str:
        """Without credentials and options."""
        return f"{self.scheme}://{self.host}/{self.path}"

    @property
    def endpoint(self) -> str | None:
        """Where S3 is, if the URL says it."""
        given = self.options.get("endpoint_override")
        return None if given is None else f"{self.options.get('scheme', 'https')}://{given}"


class Bucket:
    """What is below one URL. Nothing is asked before it is needed."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._store: ObjectStore | None = None

    def create(self, name: str, data: bytes) -> bool:
        """
        Put an object under a name that nobody has; False: there is one.

        Raises:
            RetriableError: it may come to be there yet.
            InvalidConfig: obstore is not installed, or the place is not known to it.
        """
        store = self._connected()
        import obstore
        from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

        try:
            obstore.put(store, name, data, mode="create", use_multipart=False)
        except (AlreadyExistsError, PreconditionError):
            return False
        except (BaseError, OSError) as error:
            raise RetriableError(f"{name} cannot be made: {error}") from error
        return True

    def _connected(self) -> ObjectStore:
        if self._store is None:
            try:
                from obstore.exceptions import BaseError
                from obstore.store import from_url
            except ImportError as error:
                raise InvalidConfig(
                    f"commits in a bucket need obstore: pip install 'headrace-connect[lake]' ({error})"
                ) from error
            url = BucketUrl.of(self._url)
            options: dict[str, Any] = {
                "client_options": {"timeout": _TIMEOUT},
                "retry_config": {"max_retries": _RETRIES_MAX, "retry_timeout": _TIMEOUT},
            }
            if url.scheme == "s3":
                options["config"] = _s3_options(url)
                options["client_options"]["allow_http"] = (url.endpoint or "").startswith("http:")
            try:
                self._store = from_url(url.plain, **options)
            except (BaseError, ValueError) as error:
                raise InvalidConfig(f"commits cannot be made in {url.plain}: {error}") from error
        return self._store


def _s3_options(url: BucketUrl) -> dict[str, str]:
    key, _, secret = url.user.partition(":")
    found = {
        "region": url.options.get("region"),
        "endpoint": url.endpoint,
        "access_key_id": unquote(key) or None,
        "secret_access_key": unquote(secret) or None,
    }
    return {name: value for name, value in found.items() if value is not None}


def storage_options(url: str, name: str) -> tuple[str, dict[str, str]]:
    """Where ``name`` is below a path or URL, and how libraries over Rust's object_store get there."""
    if "://" not in url:
        return f"{os.path.abspath(url)}/{name}", {}
    parts = BucketUrl.of(url)
    if parts.scheme == "file":
        return f"/{parts.path}/{name}", {}
    options = {f"aws_{key}": value for key, value in _s3_options(parts).items()} if parts.scheme == "s3" else {}
    if (parts.endpoint or "").startswith("http:"):
        options["allow_http"] = "true"
    return f"{parts.plain}/{name}", options
