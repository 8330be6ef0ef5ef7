"""Which accesses that were seen would be refused after a step from one ``Access`` to the next. For dry runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from headrace_common.core.access.decisions import Decisions
from headrace_common.core.access.observed import Report, Times, Use
from headrace_common.core.access.principal import parse_principal
from headrace_common.core.access.state import Access, Caller
from headrace_common.core.errors import Rejected


class Loss(NamedTuple):
    """A right that was used, and would not be there."""

    use: Use
    times: Times
    host: str | None
    """From this address; None: from those that no rule names, too. Where it was used from is not known."""


def find_losses(before: Access, after: Access, report: Report) -> Iterator[Loss]:
    """
    In the order of ``report``, whose uses are of whoever may know of them. A use counts if it was allowed from some
    address from which it would be no more. Narrower keys do not count: it is told of rules alone.
    """
    was, will_be = Decisions(before), Decisions(after)
    for use, times in report.uses.items():
        try:
            principal = parse_principal(use.principal)
            groups = frozenset(map(parse_principal, report.groups.get(use.principal, ())))
            caller = Caller(principal, groups)
            grantees = caller.grantees
            hosts = {grant.host for access in (before, after) for grant in access.grants(grantees)} | {None}
            for host in sorted(hosts, key=lambda host: host or ""):
                at, asked = Caller(principal, groups, host), (use.operation, use.type, use.name)
                if was.decide(at, *asked) and not will_be.decide(at, *asked):
                    yield Loss(use, times, host)
                    break
        except Rejected:  # nobody is called so, or there are too many rules to decide by
            continue
