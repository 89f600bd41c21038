"""The Berkeley Function Calling Leaderboard's questions, from the package that its authors publish.

The package is fetched when it is first asked for, without what it depends on, and nothing of it is
kept in this repository. Its schemas are JSON schemas but for the names of types, and its functions
may have dots in their names; both are changed as its authors do for OpenAI's API.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.layout import run

REQUIREMENT = "bfcl-eval==2026.3.23"
CATEGORIES = ("simple_python", "parallel")
_FILE = "BFCL_v4_{category}.json"
_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")


@dataclass(frozen=True)
class Question:
    """`expected[i]` maps the name of a function to each parameter's accepted values."""

    name: str
    messages: list[dict[str, str]]
    tools: list[dict[str, Any]]
    expected: list[dict[str, dict[str, list[Any]]]]

    def schema(self, function: str) -> dict[str, Any]:
        """The parameters of a function."""
        (found,) = (t["function"] for t in self.tools if t["function"]["name"] == function)
        parameters: dict[str, Any] = found["parameters"]
        return parameters


def questions(category: str) -> Iterator[Question]:
    """All questions of a category, in the order of the file."""
    data = _folder() / "bfcl_eval" / "data"
    name = _FILE.format(category=category)
    expected = {
        entry["id"]: entry["ground_truth"] for entry in _lines(data / "possible_answer" / name)
    }
    for entry in _lines(data / name):
        (messages,) = entry["question"]
        yield Question(
            name=entry["id"],
            messages=messages,
            tools=[_tool(function) for function in entry["function"]],
            expected=[
                {function_name(name): arguments for name, arguments in call.items()}
                for call in expected[entry["id"]]
            ],
        )


def function_name(name: str) -> str:
    """A name that OpenAI's API allows."""
    return _NOT_IN_NAMES.sub("_", name)


def json_schema(node: Any) -> Any:
    """The test's schema with the types of JSON schemas."""
    if isinstance(node, list):
        return [json_schema(child) for child in node]
    if not isinstance(node, dict):
        return node
    found: dict[str, Any] = {}
    for key, value in node.items():
        if key == "properties":
            found[key] = {name: json_schema(child) for name, child in value.items()}
        elif key == "type" and isinstance(value, str):
            found[key] = _TYPES.get(value, value)
        elif key not in ("optional", "format"):  # words of its own, and formats in prose
            found[key] = json_schema(value) if key in ("items", "parameters") else value
    return found


def _tool(function: dict[str, Any]) -> dict[str, Any]:
    spec = {
        "name": function_name(function["name"]),
        "description": function["description"],
        "parameters": json_schema(function["parameters"]),
    }
    return {"type": "function", "function": spec}


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def _folder() -> Path:
    """The folder with the package; made when it is missing. Raises PeerError."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(cache) / "phasescope" / "tools" / REQUIREMENT
    stamp = folder / "installed"
    if not stamp.is_file():
        command: list[object] = [sys.executable, "-m", "pip", "install", "--no-deps", "--upgrade"]
        command += ["--disable-pip-version-check", "--no-input", "--target", folder, REQUIREMENT]
        run("the function-calling test", command, folder.parent / "install.log")
        stamp.touch()
    return folder
