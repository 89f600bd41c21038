"""Which tokens a model puts around its reasoning, and whether a prompt has begun one.

A model that reasons writes it between two markers, then its answer. Markers count only as single
tokens of the vocabulary: then a token says for certain where the reasoning ends, in the engine as
in the gateway, and a text that merely spells a marker does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from service.config.settings import ConfigError
from service.text.tokenizer import Tokenizer

AUTO, OFF = "auto", "off"
FORMATS = {
    "think": ("<think>", "</think>"),  # DeepSeek-R1, Qwen3, QwQ, SmolLM3, GLM
    "mistral": ("[THINK]", "[/THINK]"),  # Magistral
    "seed": ("<seed:think>", "</seed:think>"),  # Seed-OSS
}
"""Texts of the markers by the name of the format."""


class ReasoningState(StrEnum):
    """What a prompt says of the reasoning that may follow.

    `OPEN`: the prompt ends within one. `POSSIBLE`: the first token may begin one. `NONE`: the
    prompt has closed it, or the answer has begun.
    """

    OPEN = "open"
    POSSIBLE = "possible"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """A format as one vocabulary has it."""

    name: str
    begin: str
    end: str
    begin_id: int
    end_id: int

    def state_after(self, tail: str) -> ReasoningState:
        """What the beginning of an answer, as the prompt has it, says."""
        begun, ended = tail.rfind(self.begin), tail.rfind(self.end)
        if begun > ended:
            return ReasoningState.OPEN
        return ReasoningState.POSSIBLE if ended < 0 else ReasoningState.NONE


def reasoning_format(tokenizer: Tokenizer, setting: str) -> ReasoningFormat | None:
    """The format that `--reasoning-format` names, or the one that the model has. Raises
    ConfigError for a name whose markers are no tokens of the vocabulary."""
    if setting == OFF:
        return None
    if setting != AUTO:
        found = _in_vocabulary(tokenizer, setting)
        if found is None:
            begin, end = FORMATS[setting]
            raise ConfigError(
                f"--reasoning-format {setting}: {begin} and {end} are not tokens of this model"
            )
        return found
    template = tokenizer.chat_template
    for name, (_, end) in FORMATS.items():
        found = _in_vocabulary(tokenizer, name)
        if found is not None and template is not None and _speaks_of(template, end):
            return found
    return None


def _in_vocabulary(tokenizer: Tokenizer, name: str) -> ReasoningFormat | None:
    begin, end = FORMATS[name]
    ids = tokenizer.token_id(begin), tokenizer.token_id(end)
    if ids[0] is None or ids[1] is None:
        return None
    return ReasoningFormat(name, begin, end, ids[0], ids[1])


def _speaks_of(template: str, marker: str) -> bool:
    """Whether a chat template has the marker; some vocabularies have tokens that no model uses."""
    return marker in template
