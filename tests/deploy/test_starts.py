"""Services import at their start what they need to serve, and nothing else: each package costs every start its time."""

from __future__ import annotations

import subprocess
import sys

import pytest

EVERY = {"google", "grpc", "grpc_health", "opentelemetry", "orjson", "prometheus_client", "typing_extensions"}
EVERY |= {"psutil", "grpc_tools"}  # OpenTelemetry and grpc look for them, where they are installed
REST = {"fastapi", "starlette", "pydantic", "pydantic_core", "annotated_types", "annotated_doc", "typing_inspection"}
REST |= {"anyio", "sniffio", "idna", "uvicorn", "click", "h11", "httptools"}
NEEDED = {
    "broker": EVERY | {"rocksdict"},
    "controller": EVERY | {"aetcd"},
    "coordinator": EVERY | {"re2"},
    "admin": EVERY | REST,
}
CODE = """
import importlib, sys
before = set(sys.modules)
for module in ("config", "main"):
    importlib.import_module(f"headrace_{sys.argv[1]}.{module}")
packages = {name for name, module in sys.modules.items()
            if name not in before and "site-packages" in (getattr(module, "__file__", None) or "")}
print(*packages)
"""


def packages_of(service: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-P", "-c", CODE, service], capture_output=True, text=True, timeout=60, check=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("service", NEEDED)
def test_a_service_imports_what_it_needs(service: str) -> None:
    modules = packages_of(service)
    ours = ("headrace", "pyspark_headrace")
    assert {name.partition(".")[0] for name in modules if not name.startswith(ours)} <= NEEDED[service]
    assert {"grpc", "prometheus_client"} <= modules, "it was looked at"
    assert not [name for name in modules if name.startswith(("opentelemetry.exporter.otlp", "opentelemetry.sdk.trace"))]
