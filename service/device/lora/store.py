"""What a decoder keeps its placed adapters in, and how an executor reaches it."""

from __future__ import annotations

from typing import Protocol

from service.device.failures import failure_of
from service.device.lora.weights import AdapterWeights
from service.engine.executor import Adapter, DeviceFailure


class AdapterStore(Protocol):
    """Adapters by number, in the memory and layout of one decoder. One thread calls it, while
    another may compute a step that has none of the numbers that change."""

    def place(self, number: int, weights: AdapterWeights) -> int:
        """Returns the bytes that all now take. Raises DeviceFailure, RuntimeError or MemoryError
        when there is no room, and then nothing has changed."""
        ...

    def drop(self, number: int) -> int:
        """Returns the bytes that are left in use."""
        ...


def place_adapter(store: AdapterStore | None, number: int, weights: Adapter) -> int:
    """For an executor. Raises DeviceFailure."""
    assert number > 0, number
    assert isinstance(weights, AdapterWeights), type(weights)
    if store is None:
        raise DeviceFailure("this back end does not compute adapters")
    try:
        return store.place(number, weights)
    except (RuntimeError, MemoryError) as error:
        failure = DeviceFailure(f"adapter of {weights.bytes} bytes: {error}")
        failure.kind = failure_of(error)
        raise failure from error


def drop_adapter(store: AdapterStore | None, number: int) -> int:
    """For an executor."""
    assert store is not None, "nothing was placed"
    return store.drop(number)
