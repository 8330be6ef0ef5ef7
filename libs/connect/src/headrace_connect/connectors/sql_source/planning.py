"""By which columns a table is read, and why it cannot be. Pure."""

from __future__ import annotations

from headrace_connect.connectors.sql_source.database import Column, Description
from headrace_connect.connectors.sql_source.settings import SourceSettings
from headrace_connect.connectors.sql_source.statements import Order, Subject
from headrace_connect.settings import Problem, near

_TIME = "timestamp.column.name"
_NUMBER = "incrementing.column.name"


def plan_order(subject: Subject, description: Description, settings: SourceSettings) -> tuple[Order, list[Problem]]:
    """The order, and what is wrong with it: no such column, one of another type, one that may be null."""
    problems: list[Problem] = []
    columns: list[tuple[str, ...]] = []
    if settings.mode.startswith("timestamp"):
        columns.append(settings.timestamp_column_name)
        problems += _check(_TIME, settings.timestamp_column_name, "time", subject, description, settings)
    if settings.mode.endswith("incrementing"):
        columns.append((settings.incrementing_column_name,))
        problems += _check(_NUMBER, (settings.incrementing_column_name,), "number", subject, description, settings)
        return Order(tuple(columns)), problems
    columns += [(name,) for name in description.key]
    return Order(tuple(columns), unique=bool(description.key)), problems


def find_warnings(subject: Subject, description: Description, order: Order, settings: SourceSettings) -> list[str]:
    """What works, and could be better."""
    warnings: list[str] = []
    if settings.mode == "bulk":
        if subject.table is not None and not description.key:
            warnings.append(f"mode: {subject.name} has no primary key: if reading stops half-way, it begins again")
        return warnings
    first = order.columns[0]
    if description.indexed is not None and (len(first) > 1 or first[0] not in description.indexed):
        key = _TIME if settings.mode.startswith("timestamp") else _NUMBER
        names = ", ".join(order.names)
        warnings.append(f"{key}: {subject.name} has no index that begins with {order.names[0]}; make one on ({names})")
    return warnings


def has_unsure(description: Description, order: Order) -> bool:
    """Whether nobody has said of a column of the order that it cannot be null: that of a view or a query."""
    columns = (description.find(name) for names in order.columns for name in names)
    return any(column is not None and column.nullable is None for column in columns)


def find_null_problem(subject: Subject, order: Order, settings: SourceSettings) -> Problem:
    """Of rows that are there, and would never be read."""
    key = _TIME if settings.mode.startswith("timestamp") else _NUMBER
    return Problem(
        key,
        f"{key}: {subject.name} has rows in which {' or '.join(order.names)} is null, and they would never be read: "
        "leave them out in the query, or set validate.non.null=false",
    )


def _check(
    key: str, names: tuple[str, ...], sorts: str, subject: Subject, description: Description, settings: SourceSettings
) -> list[Problem]:
    found = [description.find(name) for name in names]
    for name, column in zip(names, found, strict=True):
        if column is None:
            known = near(name, [one.name for one in description.columns])
            return [Problem(key, f"{key}: {subject.name} has no column {name}{known}")]
        if column.sorts not in (sorts, "either"):
            wanted = "a date or timestamp" if sorts == "time" else "a whole number"
            return [Problem(key, f"{key}: {name} of {subject.name} is {column.type}, and not {wanted}")]
    columns = [column for column in found if column is not None]
    if len({column.type for column in columns}) > 1:
        return [Problem(key, f"{key}: columns of {subject.name} have several types; they need one")]
    if settings.validate_non_null and _may_be_null(columns):
        return [
            Problem(
                key,
                f"{key}: {', '.join(names)} of {subject.name} may be null, and such a row would never be read: make it "
                "NOT NULL, or set validate.non.null=false",
            )
        ]
    return []


def _may_be_null(columns: list[Column]) -> bool:
    return all(column.nullable is True for column in columns)
