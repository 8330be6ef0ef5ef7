"""
Prints what Python packages an image has, as CycloneDX (JSON): those of the lock that its members need, and the members.

    python tools/sbom.py broker headrace-broker headrace-cli
    python tools/sbom.py broker headrace-broker headrace-cli --base python:3.11-slim@sha256:...
    python tools/sbom.py --all sbom/       # a file for each Dockerfile, as the image has it

The same tree and base give the same bytes. Packages of Debian are the base image's, which its digest names; hashes are
in the lock, by which each file was checked. It runs on the standard library alone, in the images' builders.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import shlex
import sys
import uuid
from collections.abc import Sequence
from typing import Any

import locked

BASE = "python:3.11-slim"
_PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==([^ ;\\]+)(?: *; *([^\\]*[^\\ ]))? *\\?$")
_FACTS = {
    "sys_platform": "linux",
    "platform_system": "Linux",
    "os_name": "posix",
    "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
    "python_version": "3.11",
    "python_full_version": "3.11.99",
}
"""Of what runs in an image: the newest Python of its series."""
_TEST = re.compile(r"(\w+) *(==|!=|<=|>=|<|>) *'([^']*)'")


def holds(marker: str) -> bool:
    """
    Whether a marker of the lock is true in an image.

    Raises:
        NotLocked: it asks for what is not known here.
    """
    return any(all(_is(test) for test in part.split(" and ")) for part in marker.split(" or "))


def _is(test: str) -> bool:
    found = _TEST.fullmatch(test.strip())
    if found is None or found[1] not in _FACTS:
        raise locked.NotLocked(f"the marker {test!r} is not known to tools/sbom.py; teach it")
    name, sign, value = found.groups()
    here: Any = _FACTS[name]
    if name.startswith("python"):
        here, value = (tuple(map(int, text.split("."))) for text in (here, value))
    tests = {"==": here == value, "!=": here != value}
    return (
        tests[sign]
        if sign in tests
        else {"<": here < value, ">": here > value, "<=": here <= value, ">=": here >= value}[sign]
    )


def pins(lines: Sequence[str]) -> list[tuple[str, str]]:
    """Names and versions of what is installed of a part of a lock."""
    found = [match for line in lines if (match := _PIN.match(line))]
    return [(locked.normal(one[1]), one[2]) for one in found if one[3] is None or holds(one[3])]


def sbom(image: str, wanted: Sequence[str], root: pathlib.Path, base: str, more: Sequence[str] = ()) -> dict[str, Any]:
    """
    The bill of materials of one image.

    Args:
        wanted: as ``tools/locked.py`` takes them.
        more: locks of which it has all.
    """
    lock = locked.read_lock((root / "requirements.lock").read_text())
    members = locked.read_members(root)
    own, outside = locked.closure(wanted, members, lock)
    found = {pin for name in outside for pin in pins(lock[name].lines)}
    for name in more:
        found |= set(pins((root / name).read_text().splitlines()))
    versions = {members[name][1]["version"] for name in own}
    components = [_package(name, members[name][1]["version"], ours=True) for name in own]
    components += [_package(name, version) for name, version in sorted(found)]
    at, _, digest = base.partition("@")
    properties = [{"name": "headrace:base", "value": at}]
    if digest:
        properties.append({"name": "headrace:base-digest", "value": digest})
    made: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "container",
                "bom-ref": f"headrace/{image}",
                "name": f"headrace/{image}",
                "version": max(versions),
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            },
            "properties": properties,
        },
        "components": components,
    }
    return {"serialNumber": uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(made, sort_keys=True)).urn, **made}


def _package(name: str, version: str, *, ours: bool = False) -> dict[str, Any]:
    purl = f"pkg:pypi/{name}@{version}"
    licenses = {"licenses": [{"license": {"id": "Apache-2.0"}}]} if ours else {}
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl, **licenses}


def command_of(dockerfile: str) -> list[str]:
    """
    How a Dockerfile calls this.

    Raises:
        NotLocked: it does not.
    """
    found = re.search(r"tools/sbom\.py (.*?) > ", dockerfile.replace("\\\n", " "))
    if found is None:
        raise locked.NotLocked("it does not call tools/sbom.py")
    return shlex.split(found[1])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Print what Python packages an image has, as CycloneDX.")
    parser.add_argument("image", nargs="?", help="its name, as broker")
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help="as tools/locked.py takes them")
    parser.add_argument("--and", dest="more", action="append", default=[], metavar="LOCK", help="all of this lock too")
    parser.add_argument("--base", default=BASE, help="the image that it is built on, with its digest if that is known")
    parser.add_argument("--root", type=pathlib.Path, default=locked.ROOT, help="the workspace")
    parser.add_argument("--all", type=pathlib.Path, metavar="DIRECTORY", help="of every Dockerfile, into files there")
    return parser


def _write(given: argparse.Namespace) -> str:
    return json.dumps(sbom(given.image, given.packages, given.root, given.base, given.more), indent=1) + "\n"


def main(argv: Sequence[str]) -> int:
    """Do what the command line asks for."""
    parser = _parser()
    given = parser.parse_args(argv)
    try:
        if given.all is None:
            if not given.packages:
                parser.error("give an image and its packages, or --all DIRECTORY")
            sys.stdout.write(_write(given))
            return 0
        given.all.mkdir(parents=True, exist_ok=True)
        for path in sorted((given.root / "deploy" / "docker").glob("*.Dockerfile")):
            words = [given.base if word == "$BASE" else word for word in command_of(path.read_text())]
            one = parser.parse_args([*words, "--root", str(given.root)])
            (given.all / f"{one.image}.cdx.json").write_text(_write(one))
    except locked.NotLocked as error:
        print(f"{pathlib.Path(__file__).name}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
