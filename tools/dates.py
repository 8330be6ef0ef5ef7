"""
Looks at the lock by age: what is locked and older than a year has a reason, or there is a newer one to take.

    python tools/dates.py write UV_LOCK > requirements.dates   # when each was published; tools/lock.sh does it
    python tools/dates.py check                                # offline; ends with 1 where something is too old

``requirements.old`` has the reasons: a line ``NAME: WHY`` each. What parses input of strangers is never in it: such a
package is replaced. Which holes are known is another question, and ``pip-audit`` answers it where its index is there.
"""

from __future__ import annotations

import argparse
import datetime
import pathlib
import re
import sys
import tomllib
from collections.abc import Mapping

ROOT = pathlib.Path(__file__).resolve().parent.parent
LOCK, DATES, OLD = "requirements.lock", "requirements.dates", "requirements.old"
DAYS_MAX = 365
_PIN = re.compile(r"^([a-z0-9][a-z0-9.-]*)==([^ ;\\]+)", re.MULTILINE)


def pins(lock: str) -> set[tuple[str, str]]:
    """Names and versions of a lock."""
    return set(_PIN.findall(lock))


def published(uv_lock: str) -> dict[tuple[str, str], datetime.date]:
    """When the last file of each version was uploaded, by a lock of uv's own form."""
    found = {}
    for package in tomllib.loads(uv_lock)["package"]:
        files = [*package.get("wheels", []), *([package["sdist"]] if "sdist" in package else [])]
        times = [str(file["upload-time"])[:10] for file in files if "upload-time" in file]
        if times:
            found[package["name"], package["version"]] = datetime.date.fromisoformat(max(times))
    return found


def read_dates(text: str) -> dict[tuple[str, str], datetime.date]:
    """What ``write`` has written."""
    lines = (line.split() for line in text.splitlines() if line and not line.startswith("#"))
    return {
        (name, version): datetime.date.fromisoformat(day) for pin, day in lines for name, version in [pin.split("==")]
    }


def read_reasons(text: str) -> dict[str, str]:
    """Names, and why each may be old."""
    lines = (line.partition(":") for line in text.splitlines() if line and not line.startswith("#"))
    return {name.strip(): why.strip() for name, _, why in lines}


def faults(
    locked: set[tuple[str, str]],
    dates: Mapping[tuple[str, str], datetime.date],
    reasons: Mapping[str, str],
    today: datetime.date,
) -> list[str]:
    """What is not right, a sentence each."""
    unknown = sorted(locked - dates.keys())
    found = [f"{name}=={version} has no date in {DATES}; `make lock` writes it" for name, version in unknown]
    old = {pin: (today - dates[pin]).days for pin in locked & dates.keys() if (today - dates[pin]).days > DAYS_MAX}
    for (name, version), days in sorted(old.items()):
        if not reasons.get(name):
            found.append(f"{name}=={version} is {days} days old; take a newer one, or say in {OLD} why it may be")
    gone = sorted(reasons.keys() - {name for name, _ in locked})
    return [*found, *(f"{OLD} names {name}, which is not locked; take the line out" for name in gone)]


def main(argv: list[str]) -> int:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(description="Look at the lock by age.")
    parser.add_argument("what", choices=("write", "check"))
    parser.add_argument("uv_lock", nargs="?", type=pathlib.Path, help="of write: a lock of uv's own form")
    given = parser.parse_args(argv)
    locked = pins((ROOT / LOCK).read_text())
    if given.what == "write":
        if given.uv_lock is None:
            parser.error("write takes a lock of uv's own form")
        dates = published(given.uv_lock.read_text())
        missing = sorted(locked - dates.keys())
        print("# When what is locked was published, by the index; written by tools/lock.sh, read by tools/dates.py.")
        print("\n".join(f"{name}=={version} {dates[name, version]}" for name, version in sorted(locked & dates.keys())))
        print(
            "".join(f"{name}=={version}: the index tells no date\n" for name, version in missing),
            end="",
            file=sys.stderr,
        )
        return 0
    found = faults(
        locked,
        read_dates((ROOT / DATES).read_text()),
        read_reasons((ROOT / OLD).read_text()),
        datetime.datetime.now(datetime.UTC).date(),
    )
    print("\n".join(found) or f"{len(locked)} locked: none is too old", file=sys.stderr if found else sys.stdout)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
