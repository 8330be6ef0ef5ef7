"""
Generates the SDK's calls for threads from their asyncio twins. With ``--check`` nothing is written; ends with 1 if a
committed file differs.

Each face has a template in ``tools/faces``, which holds what the twin has not. At ``# methods`` come the methods of the
twin that the template does not write itself, with the twin's docstrings; at ``# imports`` what they need. There are two
kinds of faces: one *delegates* each public coroutine to a twin that it owns and waits for it; the other is a part of a
client, made by the same code, where ``await`` is replaced by what waits on a thread. A method of the template that the
twin has too takes the twin's docstring; its own docstring, if it begins with ``::``, stands for the twin's examples. If
there is nothing but such examples, the rest is the twin's.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
SDK: Final = ROOT / "libs" / "sdk" / "src" / "headrace"
TEMPLATES: Final = Path(__file__).with_name("faces")

Method = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Face:
    """One generated module."""

    file: str
    """Below ``headrace``; the template has the same name."""
    twins: tuple[tuple[str, str, str], ...]
    """A class of the template, and where its methods come from: file and class."""
    waits: str
    """What waits for a coroutine on a thread."""
    delegates: bool = False


FACES: Final = (
    Face(
        "admin.py",
        (
            ("AdminClient", "aio/admin.py", "AdminClient"),
            ("AdminClient", "aio/_cluster_admin.py", "ClusterAdmin"),
            ("AdminClient", "aio/_group_admin.py", "GroupAdmin"),
            ("AdminClient", "aio/_transaction_admin.py", "TransactionAdmin"),
            ("AdminClient", "aio/_restore_admin.py", "RestoreAdmin"),
            ("AdminClient", "aio/_access_admin.py", "AccessAdmin"),
            ("AdminClient", "aio/_ticket_admin.py", "TicketAdmin"),
        ),
        "self._wait",
        delegates=True,
    ),
    Face(
        "transactions.py",
        (
            ("PreparedTransactions", "aio/transactions.py", "PreparedTransactions"),
            ("UnitOwner", "aio/transactions.py", "UnitOwner"),
        ),
        "self._wait",
        delegates=True,
    ),
    Face("_bulk_calls.py", (("BulkCalls", "aio/_bulk_calls.py", "BulkCalls"),), "self._thread.call"),
    Face("_fence_calls.py", (("FenceCalls", "aio/_fence_calls.py", "FenceCalls"),), "self._thread.call"),
    Face(
        "_transaction_calls.py",
        (("TransactionCalls", "aio/_transaction_calls.py", "TransactionCalls"),),
        "self._thread.call",
    ),
    Face("_group_calls.py", (("GroupCalls", "aio/_group_calls.py", "GroupCalls"),), "self._loop.call"),
    Face("_position_calls.py", (("PositionCalls", "aio/_position_calls.py", "PositionCalls"),), "self._loop.call"),
)

PRIVATE: Final = {"start": "_start"}
"""Coroutines that are public in ``aio`` only."""


class Source:
    """A module as text and as a tree, with edits by the places of nodes."""

    def __init__(self, path: Path) -> None:
        self.text = path.read_text("utf-8")
        self.module = ast.parse(self.text)
        self._lines = [line.encode() for line in self.text.splitlines(keepends=True)]

    def find_class(self, name: str) -> ast.ClassDef:
        """The class of that name."""
        (node,) = (node for node in self.module.body if isinstance(node, ast.ClassDef) and node.name == name)
        return node

    def cut(self, node: ast.stmt, edits: Sequence[tuple[tuple[int, int], tuple[int, int], str]] = ()) -> str:
        """The lines of a statement, dedented, with parts between two places (line, column) replaced."""
        first, last = first_line(node), node.end_lineno or node.lineno
        lines = {number: self._lines[number - 1] for number in range(first, last + 1)}
        for (line, column), (end_line, end_column), text in sorted(edits, reverse=True):
            lines[line] = lines[line][:column] + text.encode() + lines[end_line][end_column:]
            for between in range(line + 1, end_line + 1):
                lines[between] = b""
        return textwrap.dedent(b"".join(lines[number] for number in sorted(lines)).decode())


def first_line(node: ast.stmt) -> int:
    """Where a statement begins, decorators included."""
    decorators = node.decorator_list if isinstance(node, Method) else []
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def methods(node: ast.ClassDef) -> dict[str, Method]:
    """The methods of a class, by name."""
    return {method.name: method for method in node.body if isinstance(method, Method)}


def docstring(twin: Method, own: Method | None = None) -> str | None:
    """The docstring of a method: the twin's, with the examples of the template."""
    told = ast.get_docstring(twin)
    given = None if own is None else ast.get_docstring(own)
    if given is not None and not given.startswith("::"):
        return given
    if told is None:
        return given
    prose = re.split(r"\n*^::$", told, maxsplit=1, flags=re.MULTILINE)[0].rstrip()
    return prose if given is None else f"{prose}\n\n{given}"


def put_docstring(head: str, told: str | None, body: str) -> str:
    """A method as text. ``head`` and ``body`` end with a line."""
    lines = [] if told is None else [f'"""{told}"""' if "\n" not in told else f'"""\n{told}\n"""']
    return head + "".join(textwrap.indent(f"{line}\n", "    ") for line in lines) + body


def split_method(source: Source, method: Method, text: str) -> tuple[str, str]:
    """What is before the docstring, and what is after it."""
    first = method.body[0]
    has_docstring = ast.get_docstring(method) is not None
    lines = text.splitlines(keepends=True)
    offset = first_line(method)
    before = (first.lineno if has_docstring else first_line(first)) - offset
    after = (first.end_lineno or first.lineno) + 1 - offset if has_docstring else before
    return "".join(lines[:before]), "".join(lines[after:])


def delegate(twin: Method, waits: str) -> str:
    """A method that calls the coroutine of the twin with all it was given, and waits."""
    arguments = twin.args
    given: list[ast.expr] = [ast.Name(a.arg) for a in (*arguments.posonlyargs, *arguments.args)[1:]]
    named = [ast.keyword(a.arg, ast.Name(a.arg)) for a in arguments.kwonlyargs]
    call = ast.Call(ast.parse(f"self._twin.{twin.name}", mode="eval").body, given, named)
    wait = ast.Call(ast.parse(waits, mode="eval").body, [call], [])
    nothing = isinstance(twin.returns, ast.Constant) and twin.returns.value is None
    made = ast.FunctionDef(twin.name, arguments, [ast.Expr(wait) if nothing else ast.Return(wait)], [], twin.returns)
    head, body = ast.unparse(ast.fix_missing_locations(made)).split("\n", 1)
    return put_docstring(f"{head}\n", docstring(twin), f"{body}\n")


def translate(source: Source, twin: Method, own: Method | None, waits: str) -> str:
    """The twin's method for a thread: its text, with each ``await`` replaced."""
    edits = []
    if isinstance(twin, ast.AsyncFunctionDef):
        edits.append(((twin.lineno, twin.col_offset), (twin.lineno, twin.col_offset + len("async ")), ""))
    for node in ast.walk(twin):
        match node:
            case ast.Await(value=ast.Call(func=ast.Attribute(value=ast.Name("self"), attr=name) as called) as value):
                edits.append((start(node), start(value), ""))
                edits.append((start(called), end(called), f"self.{PRIVATE.get(name, name)}"))
            case ast.Await(value=value):
                edits.append((start(node), start(value), f"{waits}("))
                edits.append((end(value), end(value), ")"))
    head, body = split_method(source, twin, source.cut(twin, edits))
    head = head.replace(f"def {twin.name}(", f"def {PRIVATE.get(twin.name, twin.name)}(")
    return put_docstring(head, docstring(twin, own) if own is not None else ast.get_docstring(twin), body)


def start(node: ast.expr) -> tuple[int, int]:
    """Where it begins: line and column."""
    return node.lineno, node.col_offset


def end(node: ast.expr) -> tuple[int, int]:
    """Where it ends."""
    return node.end_lineno or node.lineno, node.end_col_offset or node.col_offset


def write_methods(face: Face, template: Source, owner: str, file: str, name: str) -> Iterator[str]:
    """What a class of a face takes from a class of a twin."""
    source = Source(SDK / file)
    own = methods(template.find_class(owner))
    for node in source.find_class(name).body:
        if isinstance(node, ast.AnnAssign) and not face.delegates:
            yield source.cut(node)
            continue
        if not isinstance(node, Method):
            continue
        mine = own.get(PRIVATE.get(node.name, node.name))
        if face.delegates:
            if isinstance(node, ast.AsyncFunctionDef) and not node.name.startswith("_") and mine is None:
                yield delegate(node, face.waits)
        elif mine is None or is_example(mine):
            yield translate(source, node, mine, face.waits)
        else:
            head, body = split_method(template, mine, template.cut(mine))
            yield put_docstring(head, docstring(node, mine), body)


def is_example(method: Method) -> bool:
    """Whether a method of a template is nothing but examples."""
    return len(method.body) == 1 and (ast.get_docstring(method) or "").startswith("::")


def signature_names(method: Method) -> set[str]:
    """What a signature uses."""
    parts = [method.args, *([] if method.returns is None else [method.returns])]
    return {node.id for part in parts for node in ast.walk(part) if isinstance(node, ast.Name)}


def find_imports(face: Face, template: Source) -> tuple[list[str], list[str]]:
    """The twins' imports as lines: those at the top, and those for type checkers. What nobody uses is removed later."""
    top: list[str] = []
    typing: list[str] = []
    for _, file, name in face.twins:
        source = Source(SDK / file)
        if face.delegates:
            twins = methods(source.find_class(name)).values()
            wanted = {
                found for twin in twins if isinstance(twin, ast.AsyncFunctionDef) for found in signature_names(twin)
            }
            for node in ast.walk(source.module):
                if isinstance(node, ast.ImportFrom):
                    used = [a.name for a in node.names if (a.asname or a.name) in wanted]
                    used = [a for a in used if not re.search(rf"import .*\b{a}\b", template.text)]
                    typing += [f"from {node.module} import {', '.join(used)}"] if used else []
            continue
        for node in source.module.body:
            if isinstance(node, ast.Import | ast.ImportFrom) and getattr(node, "module", None) != "__future__":
                top.append(source.cut(node))
            elif isinstance(node, ast.If):
                typing += [source.cut(each) for each in node.body]
    return top, typing


def generate(face: Face) -> str:
    """The module, formatted."""
    template = Source(TEMPLATES / f"{face.file}.template")
    text = template.text
    made: dict[str, str] = {}
    for owner, file, name in face.twins:
        taken = methods(Source(SDK / file).find_class(name))
        for method in methods(template.find_class(owner)).values():
            if not face.delegates and method.name in {PRIVATE.get(name, name) for name in taken}:
                text = text.replace(textwrap.indent(template.cut(method), "    "), "", 1)
        parts = write_methods(face, template, owner, file, name)
        made[owner] = made.get(owner, "") + "".join(f"\n{part}" if "def " in part else part for part in parts)
    for part in made.values():  # in the order of the classes in the template
        text = text.replace("    # methods\n", textwrap.indent(part, "    "), 1)
    top, typing = find_imports(face, template)
    text = text.replace("    # imports\n", textwrap.indent("\n".join(typing) + "\n", "    "), 1)
    text = text.replace("# imports\n", "\n".join(top) + "\n", 1)
    for command in (["check", "--select", "I,F401", "--fix", "-q"], ["format", "-q"]):
        ruff = [str(Path(sys.executable).with_name("ruff")), *command, "--stdin-filename", str(SDK / face.file), "-"]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return text


def main() -> int:
    """Write the modules, or check them."""
    differ = False
    for face in FACES:
        text, target = generate(face), SDK / face.file
        if "--check" not in sys.argv:
            target.write_text(text, "utf-8")
        elif target.read_text("utf-8") != text:
            differ = True
            sys.stderr.write(f"{target.relative_to(ROOT)} differs from its asyncio twin: run `make proto`, commit it\n")
    return differ


if __name__ == "__main__":
    sys.exit(main())
