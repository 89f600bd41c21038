"""Facts that the engine writes about adapters: weights that change what the model says.

An adapter has a number, given by the engine process and never again, and a name by which clients
ask for it. It is *known* from AdapterAdded to AdapterUnloaded, and *placed*, with its weights on
the device, from AdapterLoaded to AdapterEvicted or AdapterUnloaded. The rules for facts are in
`telemetry.facts.records`.
"""

from __future__ import annotations

from enum import StrEnum

from telemetry.facts.base import FactStruct as _Fact


class UnloadMode(StrEnum):
    """What happens to an adapter's sequences when it is to be unloaded."""

    WAIT = "wait"  # they are served to their end
    REFUSE = "refuse"  # with one of them it is not unloaded
    FORCE = "force"  # they end at once


class AdapterStage(StrEnum):
    """Where the load of an adapter failed."""

    READ = "read"  # its files
    MEMORY = "memory"  # it is larger than the memory for adapters
    PLACE = "place"  # the device did not take it


class AdapterRefusal(StrEnum):
    """Why adapters stay as they are."""

    NAME_TAKEN = "name_taken"
    TOO_MANY = "too_many"
    UNKNOWN = "unknown"
    IN_USE = "in_use"
    OFF = "off"  # this engine has no memory for adapters


class AdapterAdded(_Fact, frozen=True):
    """An adapter is known by `name`; its weights are at `source`. `ticket` is that of the command.
    Once it has been read it takes the name from adapter `replaces`, if there is one."""

    at_ns: int
    step_id: int
    number: int
    name: str
    source: str
    ticket: int
    replaces: int | None = None


class AdapterRead(_Fact, frozen=True):
    """A thread has read the weights from the disk in `read_ns`."""

    at_ns: int
    step_id: int
    number: int
    bytes: int
    rank: int
    read_ns: int


class AdapterLoaded(_Fact, frozen=True):
    """The adapter is placed: it takes `bytes` of the device's memory, which took `place_ns`. The
    sequences `seq_ids` waited for it, and may run now."""

    at_ns: int
    step_id: int
    number: int
    bytes: int
    place_ns: int
    seq_ids: tuple[int, ...] = ()


class AdapterEvicted(_Fact, frozen=True):
    """The adapter is not placed any more, to make room for `for_number`. The queued sequences
    `seq_ids` wait for it from now on."""

    at_ns: int
    step_id: int
    number: int
    bytes: int
    for_number: int
    seq_ids: tuple[int, ...] = ()


class AdapterClosed(_Fact, frozen=True):
    """No new sequence may use the adapter, which `live` sequences used then. It is unloaded when
    the last of them has ended. `replaced_by` has its name now, if another has."""

    at_ns: int
    step_id: int
    number: int
    name: str
    mode: UnloadMode
    live: int
    ticket: int
    replaced_by: int | None = None


class AdapterUnloaded(_Fact, frozen=True):
    """The adapter is not known any more, and its memory (`bytes`, 0 if it was not placed) is
    free."""

    at_ns: int
    step_id: int
    number: int
    bytes: int


class AdapterFailed(_Fact, frozen=True):
    """A load failed, and with it the sequences that waited for it. `detail` is one line."""

    at_ns: int
    step_id: int
    number: int
    stage: AdapterStage
    read_ns: int
    detail: str


class AdapterRefused(_Fact, frozen=True):
    """A command changed nothing. `live` sequences use the adapter of that name."""

    at_ns: int
    step_id: int
    name: str
    why: AdapterRefusal
    ticket: int
    live: int = 0


AdapterFact = (
    AdapterAdded
    | AdapterRead
    | AdapterLoaded
    | AdapterEvicted
    | AdapterClosed
    | AdapterUnloaded
    | AdapterFailed
    | AdapterRefused
)
