"""What the package installs beside an engine that others wrote: entry points, and no torch."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from service.cli import extras
from service.config.settings import ConfigError

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
HEAVY = {
    "gguf", "huggingface_hub", "jsonschema-rs", "llguidance", "openvino", "safetensors",
    "tokenizers", "torch", "transformers", "triton",
}  # fmt: skip


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=!~;\[ ]", one, maxsplit=1)[0] for one in requirements}


def test_the_base_brings_nothing_that_an_engine_pins() -> None:
    """Installed into vLLM's environment it moves neither torch nor the tokenizers."""
    assert not names(PROJECT["dependencies"]) & HEAVY
    assert names(PROJECT["optional-dependencies"]["serve"]) <= HEAVY


@pytest.mark.parametrize("group", ["vllm.general_plugins", "sglang.srt.plugins"])
def test_a_plugin_does_nothing_without_the_variable(
    group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found by its entry point, and returns at once: the engine itself is not imported."""
    import sys

    monkeypatch.delenv("PHASESCOPE_ATTACH", raising=False)
    ((name, value),) = PROJECT["entry-points"][group].items()
    assert name == "phasescope"
    assert EntryPoint(name, value, group).load()() is None
    assert not {"vllm", "sglang"} & set(sys.modules)


def test_serving_without_its_libraries_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(extras, "_SERVE", ("msgspec", "no_such_library"))
    with pytest.raises(ConfigError, match=r"no_such_library: pip install 'phasescope\[serve\]'"):
        extras.require_serve()
