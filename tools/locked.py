"""
Prints the part of ``requirements.lock`` that some packages need, with its hashes: what an image installs.

    python tools/locked.py headrace-broker headrace-cli[local] > requirements.txt
    python tools/locked.py headrace-broker --without requirements.txt     # what is not in that part
    python tools/locked.py headrace-broker --directories                  # where the members' sources are

A package is a member of the workspace, taken with what it asks of other members, or one of the lock. What these need
in turn stands in the lock itself (uv's ``# via`` lines), so no index is asked and nothing can differ from the lock.
It runs on the standard library alone, in the images' builders.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
MEMBERS = ("libs/*/pyproject.toml", "services/*/pyproject.toml", "spark-jobs/pyproject.toml")
_REQUIREMENT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^\]]*)\])?")


class NotLocked(Exception):
    """What was asked for is not to be had from the lock; the text says why and what to do."""


@dataclass
class Locked:
    """One package of the lock: its lines (more than one version where markers differ), and who needs it."""

    lines: list[str] = field(default_factory=list)
    needed_by: set[str] = field(default_factory=set)


def normal(name: str) -> str:
    """The name as the lock writes it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def parsed(requirement: str) -> tuple[str, frozenset[str]]:
    """Name and extras of a requirement such as ``psycopg[binary]>=3.3``."""
    found = _REQUIREMENT.match(requirement)
    if found is None:
        raise NotLocked(f"{requirement!r} is no requirement")
    extras = (found[2] or "").split(",")
    return normal(found[1]), frozenset(normal(extra.strip()) for extra in extras if extra.strip())


def read_lock(text: str) -> dict[str, Locked]:
    """The packages of a lock, by name."""
    packages: dict[str, Locked] = {}
    current = Locked()
    for line in text.splitlines():
        if line and not line[0].isspace() and not line.startswith("#"):
            current = packages.setdefault(parsed(line)[0], Locked())
        if not line.lstrip().startswith("#"):
            current.lines.append(line)
            continue
        words = line.split("#", 1)[1].split()
        for word in words[1:] if words[:1] == ["via"] else words:
            current.needed_by.add(normal(word))
    return packages


def read_members(root: pathlib.Path) -> dict[str, tuple[pathlib.Path, dict[str, Any]]]:
    """Directory and project table of each member, by name."""
    found = {}
    for path in sorted(p for pattern in MEMBERS for p in root.glob(pattern)):
        project = tomllib.loads(path.read_text())["project"]
        found[normal(project["name"])] = (path.parent.relative_to(root), project)
    return found


def closure(
    wanted: Iterable[str], members: dict[str, tuple[pathlib.Path, dict[str, Any]]], lock: dict[str, Locked]
) -> tuple[list[str], list[str]]:
    """
    The members and the packages of the lock that ``wanted`` need, each sorted.

    Raises:
        NotLocked: a member has no such extra, or a package is not in the lock.
    """
    own: set[str] = set()
    outside: set[str] = set()
    seen: set[tuple[str, str]] = set()
    waiting = [parsed(requirement) for requirement in wanted]
    while waiting:
        name, extras = waiting.pop()
        if name not in members:
            outside.add(name)
            continue
        own.add(name)
        project = members[name][1]
        groups = {normal(extra): needs for extra, needs in project.get("optional-dependencies", {}).items()}
        groups[""] = project["dependencies"]
        for extra in ("", *extras):
            if extra not in groups:
                raise NotLocked(f"{name} has no extra {extra!r}; it has: {', '.join(sorted(groups)[1:]) or 'none'}")
            if (name, extra) not in seen:
                seen.add((name, extra))
                waiting.extend(parsed(requirement) for requirement in groups[extra])
    missing = sorted(outside - lock.keys())
    if missing:
        raise NotLocked(f"requirements.lock has no {', '.join(missing)}; `make lock` resolves it anew")
    while more := {name for name, package in lock.items() if package.needed_by & outside} - outside:
        outside |= more
    return sorted(own), sorted(outside)


def main(argv: list[str]) -> int:
    """Print what the command line asks for."""
    parser = argparse.ArgumentParser(description="Print the part of requirements.lock that some packages need.")
    parser.add_argument(
        "packages", nargs="+", metavar="PACKAGE", help="a member or a package of the lock; extras in []"
    )
    parser.add_argument("--without", type=pathlib.Path, metavar="FILE", help="leave out what this file has")
    parser.add_argument("--directories", action="store_true", help="print the members' directories instead")
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, help="the workspace")
    options = parser.parse_args(argv)
    try:
        lock = read_lock((options.root / "requirements.lock").read_text())
        if not any(package.needed_by for package in lock.values()):
            raise NotLocked("requirements.lock does not say what needs what; `make lock` writes it so")
        members = read_members(options.root)
        own, outside = closure(options.packages, members, lock)
    except NotLocked as error:
        print(f"{pathlib.Path(__file__).name}: {error}", file=sys.stderr)
        return 1
    if options.directories:
        print("\n".join(str(members[name][0]) for name in own))
        return 0
    there = read_lock(options.without.read_text()) if options.without else {}
    print("\n".join(line for name in outside if name not in there for line in lock[name].lines))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
