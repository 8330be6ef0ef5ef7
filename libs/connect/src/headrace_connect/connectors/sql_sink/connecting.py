"""Which database it is, by its URL; the driver of another one is not imported."""

from __future__ import annotations

from headrace_connect.connectors.sql.session import needs_driver
from headrace_connect.connectors.sql.url import MariadbAddress
from headrace_connect.connectors.sql_sink.database import Comparing, Database
from headrace_connect.connectors.sql_sink.settings import SinkSettings


def connect_to(settings: SinkSettings) -> Database:
    """
    The database of the settings; nothing is asked of it yet.

    Raises:
        InvalidConfig: its driver is not installed.
    """
    if settings.url.scheme != "mariadb":
        return connect_to_compare(settings)
    with needs_driver("MariaDB", "mariadb"):
        from headrace_connect.connectors.sql_sink.mariadb import Mariadb

    address = MariadbAddress.parse(settings.url.text)
    return Mariadb(address, settings.connection_user, _password(settings), settings.timeout_ms)


def connect_to_compare(settings: SinkSettings) -> Comparing:
    """The same, of SQLite and PostgreSQL: MariaDB keeps tables that are made in a transaction."""
    if settings.url.scheme == "sqlite":
        from headrace_connect.connectors.sql_sink.sqlite import Sqlite

        return Sqlite(settings.url.path, settings.timeout_ms)
    with needs_driver("PostgreSQL", "postgres"):
        from headrace_connect.connectors.sql_sink.postgres import Postgres

    return Postgres(settings.url.text, settings.connection_user, _password(settings), settings.timeout_ms)


def _password(settings: SinkSettings) -> str:
    return settings.connection_password.reveal() if settings.connection_password else ""
