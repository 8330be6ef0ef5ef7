"""Prints what all members need from outside, for ``tools/lock.sh``."""

import pathlib
import sys
import tomllib


def main(paths: list[str]) -> None:
    """Print the union of the dependencies of the pyproject files at ``paths``, without the members themselves."""
    projects = [tomllib.loads(pathlib.Path(p).read_text())["project"] for p in paths]
    own = {p["name"] for p in projects}
    wanted = {d for p in projects for d in p["dependencies"]}
    for extra in (p.get("optional-dependencies", {}) for p in projects):
        wanted |= {d for group in extra.values() for d in group}
    print("\n".join(sorted(d for d in wanted if d not in own)))


if __name__ == "__main__":
    main(sys.argv[1:])
