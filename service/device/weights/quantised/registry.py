"""Which scheme a config.json names."""

from __future__ import annotations

from collections.abc import Callable

from service.config.settings import ConfigError
from service.device.weights.quantised.awq import read_awq
from service.device.weights.quantised.compressed_config import read_compressed
from service.device.weights.quantised.fp8 import read_fp8
from service.device.weights.quantised.gptq import read_gptq
from service.device.weights.quantised.scheme import Scheme
from service.model_files.strict_keys import StrictKeys

_KEYS = ("quantization_config", "compression_config")
_READERS: dict[str, Callable[[StrictKeys], Scheme]] = {
    "gptq": read_gptq,
    "awq": read_awq,
    "fp8": read_fp8,
    "compressed-tensors": read_compressed,
}


def read_scheme(config: StrictKeys) -> Scheme | None:
    """None for a checkpoint of floats. Raises ConfigError for one that is quantised another way,
    or has settings that are not obeyed."""
    found = [key for key in _KEYS if config.peek(key)]
    for key in set(_KEYS) - set(found):
        config.take(key)
    if not found:
        return None
    if len(found) > 1:
        raise config.refused(found[1], "beside quantization_config", "state one of the two")
    (key,) = found
    stated = config.part(key)
    method = stated.take("quant_method", "compressed-tensors" if key != _KEYS[0] else None)
    reader = _READERS.get(method) if isinstance(method, str) else None
    if reader is None:
        known = ", ".join(_READERS)
        raise ConfigError(
            f"{config.path}: {key}: weights quantised by {method or 'an unknown method'} are not "
            f"read ({known} are); use another checkpoint, or the unquantised one with --weights"
        )
    return reader(stated)
