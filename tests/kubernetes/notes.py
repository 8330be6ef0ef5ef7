"""
Takes the commands out of NOTES.txt, so that what users are told to type is what is run.
"""

from __future__ import annotations

import re

PROGRAMS = ("kubectl", "helm", "headrace", "echo", "printf")
_FIRST = re.compile(rf"^\s+(?:\$ )?((?:{'|'.join(PROGRAMS)})\b.*)$")


def commands(notes: str) -> list[str]:
    """Indented lines that begin with a program, with the lines that a backslash ties to them; in their order."""
    found: list[str] = []
    lines = iter(notes.splitlines())
    for line in lines:
        match = _FIRST.match(line)
        if match is None:
            continue
        command = match.group(1).rstrip()
        while command.endswith("\\"):
            command = command[:-1].rstrip() + " " + next(lines, "").strip()
        found.append(command)
    return found
