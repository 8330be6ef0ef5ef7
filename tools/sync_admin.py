"""
Generates ``headrace.admin`` from its asyncio twin: each public coroutine becomes a method that waits for it.

``admin.py.template`` has what is not a method of the twin. Signatures and docstrings are the twin's own. With
``--check`` nothing is written; ends with 1 if the committed file differs.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
SDK: Final = ROOT / "libs" / "sdk" / "src" / "headrace"
TARGET: Final = SDK / "admin.py"
TEMPLATE: Final = Path(__file__).with_name("admin.py.template")
TWIN: Final = {
    "aio/admin.py": "AdminClient",
    "aio/_cluster_admin.py": "ClusterAdmin",
    "aio/_group_admin.py": "GroupAdmin",
    "aio/_transaction_admin.py": "TransactionAdmin",
    "aio/_restore_admin.py": "RestoreAdmin",
}
"""The twin's class, in parts."""

LIFE: Final = frozenset({"close"})
"""What the template has itself."""


def coroutines(module: ast.Module, name: str) -> list[ast.AsyncFunctionDef]:
    """The public ones of a class, in their order."""
    (found,) = (node for node in module.body if isinstance(node, ast.ClassDef) and node.name == name)
    methods = (node for node in found.body if isinstance(node, ast.AsyncFunctionDef))
    return [node for node in methods if not node.name.startswith("_") and node.name not in LIFE]


def waiting(twin: ast.AsyncFunctionDef) -> ast.FunctionDef:
    """The method that calls a coroutine of the twin with all it was given, and waits."""
    arguments = twin.args
    given: list[ast.expr] = [ast.Name(a.arg) for a in (*arguments.posonlyargs, *arguments.args)[1:]]
    named = [ast.keyword(a.arg, ast.Name(a.arg)) for a in arguments.kwonlyargs]
    call = ast.Call(ast.parse(f"self._client.{twin.name}", mode="eval").body, given, named)
    wait: ast.stmt = ast.Return(ast.Call(ast.parse("self._wait", mode="eval").body, [call], []))
    if isinstance(twin.returns, ast.Constant) and twin.returns.value is None:
        wait = ast.Expr(ast.Call(ast.parse("self._wait", mode="eval").body, [call], []))
    made = ast.FunctionDef(twin.name, arguments, [wait], [], twin.returns)
    return ast.fix_missing_locations(made)


def source(twin: ast.AsyncFunctionDef) -> str:
    """The method as text, with the twin's docstring as it stands there."""
    head, wait = ast.unparse(waiting(twin)).split("\n", 1)
    told = ast.get_docstring(twin)
    lines = [] if told is None else [f'"""{told}"""' if "\n" not in told else f'"""\n{told}\n"""']
    body = "\n".join(f"    {line}" if line else "" for text in lines for line in text.split("\n"))
    return f"{head}\n{body}\n{wait}\n"


def imports(module: ast.Module, wanted: set[str]) -> Iterator[tuple[str, str]]:
    """Where the names that signatures use come from: module and name."""
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from ((node.module, alias.name) for alias in node.names if (alias.asname or alias.name) in wanted)


def names(twin: ast.AsyncFunctionDef) -> set[str]:
    """What its signature uses."""
    parts = [twin.args, *([] if twin.returns is None else [twin.returns])]
    return {node.id for part in parts for node in ast.walk(part) if isinstance(node, ast.Name)}


def generate() -> str:
    """The module, formatted."""
    methods: list[str] = []
    wanted: dict[str, set[str]] = {}
    template = TEMPLATE.read_text("utf-8")
    for file, name in TWIN.items():
        module = ast.parse((SDK / file).read_text("utf-8"))
        for twin in coroutines(module, name):
            methods.append(source(twin))
            for where, what in imports(module, names(twin)):
                if f"import {what}\n" not in template:
                    wanted.setdefault(where, set()).add(what)
    lines = [f"from {where} import {', '.join(sorted(found))}" for where, found in sorted(wanted.items())]
    indented = "\n".join(f"    {line}" if line else "" for method in methods for line in f"{method}".split("\n"))
    text = template.replace("    # imports\n", "".join(f"    {line}\n" for line in lines)).replace(
        "    # methods\n", indented
    )
    for command in (["check", "--select", "I", "--fix", "-q"], ["format", "-q"]):
        ruff = [str(Path(sys.executable).with_name("ruff")), *command, "--stdin-filename", str(TARGET), "-"]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return text


def main() -> int:
    """Write the module, or check it."""
    text = generate()
    if "--check" not in sys.argv:
        TARGET.write_text(text, "utf-8")
        return 0
    if TARGET.read_text("utf-8") == text:
        return 0
    sys.stderr.write(f"{TARGET.relative_to(ROOT)} differs from its asyncio twin: run `make proto`, commit the result\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
