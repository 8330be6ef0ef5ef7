"""Prints what all members need from outside, for ``tools/lock.sh``."""

import pathlib
import re
import sys
import tomllib

SPARK = "spark"
"""The extra that has a lock of its own: 460 MB, of no use without Java."""


def main(extra: str, paths: list[str]) -> None:
    """
    Print the union of the dependencies of the pyproject files at ``paths``, without the members themselves.

    Args:
        extra: "spark": only what that extra adds; "": everything else.
        paths: of pyproject files.
    """
    projects = [tomllib.loads(pathlib.Path(p).read_text())["project"] for p in paths]
    own = {p["name"] for p in projects}
    wanted = set() if extra == SPARK else {d for p in projects for d in p["dependencies"]}
    for extras in (p.get("optional-dependencies", {}) for p in projects):
        wanted |= {d for name, group in extras.items() if (name == SPARK) == (extra == SPARK) for d in group}
    print("\n".join(sorted(d for d in wanted if re.split(r"[\[=]", d)[0] not in own)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
