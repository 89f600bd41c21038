"""One choice of a response: tokens in, text and log-probabilities out."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from service.engine.plan import Emission, Sample, TokenLogprob
from service.engine.prompt_output import PromptResult
from service.gateway.generation.reasoning_text import ReasoningText
from service.gateway.generation.tool_text import ToolText
from service.gateway.ingest.compat.compat_options import NO_COMPAT_OPTIONS, CompatOptions
from service.text.detokenizer import Detokenizer, StopScanner
from service.text.tokenizer import Tokenizer
from service.text.tools.parser import CallPiece
from telemetry.facts.reasons import EndReason


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token with its log-probability; its text begins at character `offset` of the choice."""

    token_id: int
    logprob: float
    top: tuple[TokenLogprob, ...]
    offset: int


@dataclass(slots=True)
class Delta:
    """What is new in a choice since the last `take_delta`; `text` is of the answer. `token_ids`
    None: they were not asked for. `entries` are the `scored` tokens as JSON, where that has been
    made."""

    text: str
    scored: list[ScoredToken]
    finish_reason: str | None
    token_ids: list[int] | None = None
    reasoning: str = ""
    calls: list[CallPiece] = field(default_factory=list)
    entries: list[msgspec.Raw] | None = None

    @property
    def is_empty(self) -> bool:
        if self.text or self.reasoning or self.scored or self.calls:
            return False
        return self.finish_reason is None


class Choice:
    """Detokenizes one sequence, and finds the stop strings of its answer; `read` is what came of
    its prompt."""

    def __init__(
        self,
        index: int,
        seq_id: int,
        tokenizer: Tokenizer,
        stops: tuple[str, ...],
        compat_options: CompatOptions = NO_COMPAT_OPTIONS,
        reasoning: ReasoningText | None = None,
        tools: ToolText | None = None,
        continues: bool = False,
    ) -> None:
        """`reasoning` takes what comes before the answer; None: all is the answer. `tools` takes
        the calls out of it; None: there can be none. `continues`: it goes on with a text."""
        self.index = index
        self.seq_id = seq_id
        self.output_tokens = 0
        self.end: EndReason | None = None
        self.stop_found = False
        self.reasoning = reasoning
        self.tools = tools
        self._strips = False
        self._keep_stop = compat_options.keep_stop
        marks = () if tools is None else tools.mark_ids
        self._detokenizer = Detokenizer(
            tokenizer, not compat_options.keep_special, shown_ids=marks, continues=continues
        )
        self._scanner = StopScanner(stops, compat_options.keep_stop) if stops else None
        self._token_ids: list[int] | None = [] if compat_options.token_ids else None
        self._text: list[str] = []
        self._taken_text: list[str] = []
        self._scored: list[ScoredToken] = []
        self._raw_length = 0
        self._finish_sent = False
        self._logprob = 0.0
        self.read: list[PromptResult] = []

    @property
    def mean_logprob(self) -> float:
        """The mean natural log-probability of its tokens: how likely the text is for its length; 0
        of no tokens."""
        return self._logprob / max(1, self.output_tokens)

    @property
    def done(self) -> bool:
        """No more text will come."""
        return self.end is not None or self.stop_found

    @property
    def is_sent(self) -> bool:
        """All of it was taken for the answer; candidates that are not among the best never are."""
        return self._finish_sent

    def accept(self, emission: Emission) -> None:
        """Process an emission; sets `stop_found` when a stop string is complete."""
        if self.stop_found:
            return  # computed before the engine had the cancellation
        if emission.prompt is not None:
            self.read.append(emission.prompt)
        if emission.sample is not None:
            self._add(emission.sample, emission.end)
        if emission.end is not None and not self.stop_found:
            self.end = emission.end
            self._flush()

    def take_delta(self) -> Delta:
        """New text and log-probabilities; the finish reason once. Token ids wait for the text
        that they become."""
        finish = None
        if self.done and not self._finish_sent:
            self._finish_sent = True
            finish = self.finish_reason
        thought = "" if self.reasoning is None else self.reasoning.take()
        calls = [] if self.tools is None else self.tools.take()
        delta = Delta("".join(self._text), self._scored, finish, reasoning=thought, calls=calls)
        self._taken_text.append(delta.text)
        self._text, self._scored = [], []
        if self._token_ids is not None and not delta.is_empty:
            delta.token_ids, self._token_ids = self._token_ids, []
        return delta

    @property
    def full_text(self) -> str:
        """All text that `take_delta` has returned."""
        return "".join(self._taken_text)

    @property
    def finish_reason(self) -> str:
        """OpenAI's `finish_reason`: `length` at a token limit, `tool_calls` after calls, else
        `stop`."""
        if self.end in (EndReason.MAX_TOKENS, EndReason.CONTEXT):
            return "length"
        return "tool_calls" if self.tools is not None and self.tools.calls else "stop"

    def _add(self, sample: Sample, end: EndReason | None) -> None:
        self.output_tokens += 1
        if self._token_ids is not None:
            self._token_ids.append(sample.token_id)
        if sample.logprob is not None:
            self._logprob += sample.logprob
        if self.reasoning is not None and not self.reasoning.accept(sample.token_id):
            self._strips = True  # the blank lines between reasoning and answer
            return
        if sample.logprob is not None:
            scored = ScoredToken(
                sample.token_id, sample.logprob, sample.top or (), self._raw_length
            )
            self._scored.append(scored)
        if end in (EndReason.EOS, EndReason.STOP_TOKEN) and not self._keep_stop:
            return  # the token that ends the text is not part of it
        self._append(self._detokenizer.push(sample.token_id))

    def _append(self, text: str) -> None:
        if self._strips:
            text = text.lstrip()
            self._strips = not text
        self._raw_length += len(text)
        if self.tools is not None:
            text = self.tools.push(text)
        self._append_content(text)

    def _append_content(self, text: str) -> None:
        """Stop strings are looked for in text only: a call is never cut by one."""
        if self._scanner is not None:
            text, self.stop_found = self._scanner.push(text)
        if text:
            self._text.append(text)

    def _flush(self) -> None:
        """Release the text that was held back for a stop string or an incomplete character."""
        if self.reasoning is not None:
            self.reasoning.finish()
        self._append(self._detokenizer.finish())
        if self.tools is not None and not self.stop_found:
            self._append_content(self.tools.finish())
        if self._scanner is not None and not self.stop_found:
            self._text.append(self._scanner.finish())
