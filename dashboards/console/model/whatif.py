"""What a replay says would have spared requests their time: the part of `/debug/root` that is
shown. The views import no replay, so the types of the answer are stated here."""

from __future__ import annotations

from typing import Any

import msgspec


class Gain(msgspec.Struct, frozen=True):
    """What the removal of one cause would have spared, on the latency that it helps most."""

    cause: str
    symptom: str
    gain: float
    spared_ms: float


class Explained(msgspec.Struct, frozen=True):
    """The causes, the one that explains most first."""

    requests: int = 0
    gains: tuple[Gain, ...] = ()


class RootAnswer(msgspec.Struct, frozen=True):
    """`promises` is the predicted gain of the first action against each finding, by symptom;
    `remedies` what to do about each cause. `state` is set while there is no answer, `failure` when
    the last attempt failed."""

    explanation: Explained = Explained()
    promises: dict[str, str] = {}
    remedies: dict[str, str] = {}
    state: str = ""
    failure: Any = None


def root_answer(answer: dict[str, Any]) -> RootAnswer:
    """Raises msgspec.ValidationError."""
    return msgspec.convert(answer, RootAnswer)
