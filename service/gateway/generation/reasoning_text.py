"""The reasoning of one choice: its tokens become text apart from the answer's."""

from __future__ import annotations

from service.engine.plan import Reasoning
from service.engine.reasoning import ReasoningWatch
from service.text.detokenizer import Detokenizer
from service.text.tokenizer import Tokenizer


class ReasoningText:
    """Takes tokens until the answer begins. White space around the reasoning is left out, so what
    may be the last of it is held back."""

    def __init__(self, reasoning: Reasoning, tokenizer: Tokenizer, shown: bool = True) -> None:
        """`shown` False: the text is dropped, as clients may ask for."""
        self._watch = ReasoningWatch(reasoning)
        self._detokenizer = Detokenizer(tokenizer)
        self._shown = shown
        self._begun = False
        self._held: list[str] = []
        self._text: list[str] = []

    @property
    def tokens(self) -> int:
        """Tokens inside, without the markers."""
        return self._watch.tokens

    @property
    def was_cut(self) -> bool:
        """Whether the budget ended it."""
        return self._watch.was_cut

    def accept(self, token_id: int) -> bool:
        """Take a token; True if it is one of the answer instead."""
        before = self._watch.tokens
        is_answer = self._watch.accept(token_id)
        if self._watch.tokens > before:
            self._append(self._detokenizer.push(token_id))
        elif not is_answer:  # a marker
            self.finish()
        return is_answer

    def finish(self) -> None:
        """The reasoning has ended, or the output within it."""
        self._append(self._detokenizer.finish())

    def take(self) -> str:
        """What is new since the last call."""
        text = "".join(self._text)
        self._text.clear()
        return text

    def _append(self, text: str) -> None:
        if not self._shown:
            return
        if not self._begun:
            text = text.lstrip()
        whole = text.rstrip()
        if whole:
            self._begun = True
            self._text += [*self._held, whole]
            self._held.clear()
        if len(text) > len(whole):
            self._held.append(text[len(whole) :])
