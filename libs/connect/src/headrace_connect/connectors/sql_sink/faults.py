"""Failures of the database, as the runtime understands them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headrace_connect.connectors.sql.session import RowFault, TableFault
from headrace_connect.connectors.sql_sink.plan import NoSuchKey
from headrace_connect.plugin import RetriableError
from headrace_connect.settings import Problem, invalid


@contextmanager
def told() -> Iterator[None]:
    """
    Around all that asks the database.

    Raises:
        RetriableError: the database is away or busy.
        InvalidConfig: the database, its tables or the settings have to be changed.
    """
    try:
        yield
    except (TableFault, NoSuchKey) as error:
        raise invalid([Problem("", str(error))]) from error
    except RowFault as error:
        raise RetriableError(str(error)) from error
