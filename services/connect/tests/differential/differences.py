"""Where our answers are not Kafka's, and why; ``docs/connect-rest.md`` tells users."""

from __future__ import annotations

from typing import Final

_BODY: Final = "the body is wrong, and that is no fault of the worker: 400, not 500"
_NAME: Final = "its paths cannot be asked for, or it stands in ids of 80 bytes: refused, before anybody depends on it"

DIFFERENCES: Final[dict[str, str]] = {
    **dict.fromkeys(
        (
            "create without a body",
            "create of a text",
            "create of a list",
            "create of half JSON",
            "create without a config",
            "create with something unknown",
            "create with an object inside",
            "create with a wrong state",
            "put without a body",
            "put a list",
            "alter without a body",
            "alter with a text",
            "alter something unknown",
            "validate without a class",
            "validate without a body",
        ),
        _BODY,
    ),
    "validate nobody": "the answer says it at connector.class, as everything else that is wrong",
    "create with a null": "a null is no text; Kafka keeps it, and its own validation refuses it elsewhere",
    "create with a name of 300": _NAME,
    "create with two dots": _NAME,
    "get with a slash in the name": "Kafka makes connectors that nobody can ask for",
    "get with a percent in the name": "the same",
    "tasks-config": "Kafka 4 has it no more; tools of before ask for it",
    "patch the name": "Kafka writes another name into the configuration of a connector that keeps its own",
    "reset topics of nobody": "404, as for every other change of a connector that there is not",
    "set everywhere": "levels are set at each worker",
}
"""Label of a call -> the reason. Each must really differ."""
LIVE: Final[dict[str, str]] = {}
"""Those that only a real worker has."""
