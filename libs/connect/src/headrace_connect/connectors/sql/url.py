"""Where a database is: ``connection.url`` of both connectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

_SCHEMES: Final = ("sqlite", "postgresql", "postgres", "mariadb")
_TLS: Final = ("disable", "trust", "verify-ca", "verify-full")


@dataclass(frozen=True, slots=True)
class DatabaseUrl:
    """One that there is a driver for."""

    text: str
    """Without ``jdbc:``."""

    @classmethod
    def parse(cls, given: str) -> DatabaseUrl:
        """
        Raises:
            ValueError: says what it should be.
        """
        url = cls(given.removeprefix("jdbc:"))
        if url.scheme not in _SCHEMES:
            raise ValueError(
                "connection.url is sqlite:///PATH, postgresql://HOST:PORT/DATABASE or mariadb://HOST:PORT/DATABASE; "
                "other databases need a connector of their own"
            )
        if url.scheme == "sqlite" and not url.path:
            raise ValueError("connection.url has no path; it is sqlite:///PATH, four slashes for an absolute one")
        if url.scheme == "mariadb":
            MariadbAddress.parse(url.text)
        return url

    @property
    def scheme(self) -> str:
        """Which database: sqlite, postgresql, postgres."""
        return self.text.partition(":")[0]

    @property
    def path(self) -> str:
        """Of SQLite."""
        rest = self.text.partition(":")[2]
        if rest.startswith("//"):
            return rest[3:] if rest.startswith("///") else ""
        return rest


@dataclass(frozen=True, slots=True)
class MariadbAddress:
    """What the URL of a MariaDB says; options have the names of its JDBC driver."""

    host: str
    port: int
    database: str
    user: str
    password: str
    tls: str = ""
    """``sslMode``: ``disable``, ``trust`` (no look at the certificate), ``verify-ca``, ``verify-full``. Empty: TLS
    where the server has it, without a look at the certificate."""
    authority: str = ""
    """``serverSslCert``: a file of certificates to trust; empty: those of the machine."""
    socket: str = ""
    """``localSocket``: a path instead of host and port."""

    @classmethod
    def parse(cls, text: str) -> MariadbAddress:
        """
        Raises:
            ValueError: says what it should be.
        """
        try:
            parts = urlsplit(text)
            port = parts.port or 3306
        except ValueError as error:
            raise ValueError(f"connection.url is mariadb://HOST:PORT/DATABASE: {error}") from None
        database = unquote(parts.path.removeprefix("/"))
        if not database or "/" in database:
            raise ValueError("connection.url has no database; it is mariadb://HOST:PORT/DATABASE")
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        tls, authority, socket = (options.pop(name, "") for name in ("sslMode", "serverSslCert", "localSocket"))
        if options:
            raise ValueError(
                f"connection.url: {next(iter(options))} is no option here; there are sslMode, serverSslCert and "
                "localSocket"
            )
        if tls and tls not in _TLS:
            raise ValueError(f"connection.url: sslMode is one of {', '.join(_TLS)}, not {tls!r}")
        if authority and not tls.startswith("verify"):
            raise ValueError("connection.url: serverSslCert needs sslMode=verify-ca or verify-full")
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        return cls(parts.hostname or "127.0.0.1", port, database, user, password, tls, authority, socket)
