"""What the device has to do for adapters, as the core decided it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ReadWeights:
    """Read the files at `source`, beside the steps; a WeightsRead command is the answer."""

    number: int
    source: str


@dataclass(frozen=True, slots=True)
class Place:
    """Put the weights that were read on the device."""

    number: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Free the adapter's memory on the device. No launched step uses it."""

    number: int


@dataclass(frozen=True, slots=True)
class Forget:
    """The weights that were read are not wanted."""

    number: int


Order = ReadWeights | Place | Drop | Forget


class AdapterDevice(Protocol):
    """Carries out orders; the engine loop calls it between steps."""

    def read(self, number: int, source: str) -> None:
        """Begin to read; does not wait."""
        ...

    def place(self, number: int) -> int:
        """Returns the bytes that it takes on the device. Raises DeviceFailure."""
        ...

    def drop(self, number: int) -> None: ...

    def forget(self, number: int) -> None: ...


class NoAdapters:
    """The device of an engine without adapters: it is never called."""

    def read(self, number: int, source: str) -> None:
        raise AssertionError(f"no device for adapter {number}")

    def place(self, number: int) -> int:
        raise AssertionError(f"no device for adapter {number}")

    def drop(self, number: int) -> None:
        raise AssertionError(f"no device for adapter {number}")

    def forget(self, number: int) -> None:
        raise AssertionError(f"no device for adapter {number}")
