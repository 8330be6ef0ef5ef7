"""An API server whose one account may make Secrets, and neither read nor change one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from libs.common.tests.kit.api_server import BEARER


@dataclass
class SecretsApi:
    """Keeps the Secrets that were made."""

    env: dict[str, str] = field(default_factory=dict)
    """Of a pod that asks it."""
    secrets: dict[str, dict[str, Any]] = field(default_factory=dict)
    paths: list[str] = field(default_factory=list)
    answer: tuple[int, Any] | None = None
    """Instead of what it would say."""

    def post(self, method: str, path: str, bearer: str | None, secret: Any) -> tuple[int, Any]:
        """What it answers."""
        assert method == "POST", "it reads nothing"
        self.paths.append(path)
        if self.answer is not None:
            return self.answer
        if bearer != f"Bearer {BEARER}":
            return 401, {"kind": "Status", "reason": "Unauthorized"}
        if secret["metadata"]["name"] in self.secrets:
            return 409, {"kind": "Status", "reason": "AlreadyExists"}
        self.secrets[secret["metadata"]["name"]] = secret
        return 201, secret
