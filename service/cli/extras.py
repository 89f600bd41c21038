"""What a part of the command line needs beyond the libraries that are always there."""

from __future__ import annotations

from importlib.util import find_spec

from service.config.fleet_settings import KvTransportName
from service.config.settings import ConfigError
from service.fleet.transfer.movers.nixl_mover import NOT_INSTALLED, is_installed

_SERVE = (
    "gguf",
    "huggingface_hub",
    "jsonschema_rs",
    "llguidance",
    "openvino",
    "safetensors",
    "tokenizers",
    "torch",
)


def require_serve() -> None:
    """Raises ConfigError where the libraries of an engine of our own are not installed."""
    missing = [name for name in _SERVE if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"an engine of our own needs {', '.join(missing)}: pip install 'phasescope[serve]'"
        )


def require_transport(name: KvTransportName) -> None:
    """Raises ConfigError where what carries KV is not installed: before a model is loaded."""
    if name == "nixl" and not is_installed():
        raise ConfigError(f"--kv-transport {name}: {NOT_INSTALLED}")
