"""Prompts: token ids or real words of an exact length, different for every request.

Prompts share no prefix unless their class has a shared one, and the salt of a run makes them
differ from those of any earlier run, so that the prefix cache has no accidental hits.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from lab.load.spec import BenchSpec, Endpoint, PromptForm, SharedPrefix
from lab.load.workload.words import WORDS
from service.config.settings import ConfigError, ModelKind, ModelRef
from service.text.tokenizer import Tokenizer, load_tokenizer

_FILLERS = (" the", " a", "s", ".", "1")
_WORDS_DRAWN = 64
_PREFIX = 1 << 40  # where the numbers of shared prefixes begin

Prompt = list[int] | str


def open_tokenizer(place: str) -> Tokenizer:
    """From a .gguf file, a Hugging Face folder (or its tokenizer.json), or `dummy:SHAPE`."""
    if place.startswith("dummy:"):
        kind, path = ModelKind.DUMMY, place.removeprefix("dummy:")
    elif place.endswith(".gguf") and Path(place).is_file():
        kind, path = ModelKind.GGUF, place
    elif (Path(place) / "tokenizer.json").is_file():
        kind, path = ModelKind.HF_FOLDER, place
    elif Path(place).name == "tokenizer.json" and Path(place).is_file():
        kind, path = ModelKind.HF_FOLDER, str(Path(place).parent)
    else:
        raise ConfigError(
            f"--tokenizer {place}: give a .gguf file or a folder with a tokenizer.json"
        )
    return load_tokenizer(ModelRef(kind=kind, path=path, name=place))


def read_corpus(path: str | None) -> tuple[str, ...]:
    """The words of a text file, or the built-in ones."""
    if path is None:
        return WORDS
    try:
        words = tuple(Path(path).read_text(encoding="utf-8").split())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--corpus {path}: {error}") from error
    if len(words) < 100:
        raise ConfigError(f"--corpus {path}: give a text of at least 100 words")
    return words


class PromptMaker:
    """Builds the prompt number `n` of each class; a function of salt, class and number."""

    def __init__(self, spec: BenchSpec, salt: int, token_ids: tuple[int, int] | None) -> None:
        self._spec = spec
        self._salt = salt
        self._token_ids = token_ids
        self._words = read_corpus(spec.corpus)
        self._tokenizer = None if spec.tokenizer is None else open_tokenizer(spec.tokenizer)
        self._prefixes: dict[int, Prompt] = {}

    @property
    def is_slow(self) -> bool:
        """Whether prompts are built in a thread, so that time stamps are not delayed."""
        return self._tokenizer is not None

    def make(self, class_index: int, number: int, tokens: int) -> Prompt:
        """A prompt of `tokens` tokens. Raises ConfigError when no text of that length exists."""
        begin = self._prefix(class_index, tokens)
        rng = np.random.default_rng([self._salt, class_index, number])
        if self._tokenizer is None:
            assert not isinstance(begin, str)
            return [*begin, *self._random_ids(rng, tokens - len(begin))]
        words = self._draw_words(rng)
        if self._spec.prompt_form is PromptForm.TEXT:
            assert isinstance(begin, str)
            return self._fit(begin, words, tokens)
        assert not isinstance(begin, str)
        return [*begin, *self._word_ids(words, tokens - len(begin))]

    def probe(self, tokens: int) -> Prompt:
        """A prompt that no class uses."""
        rng = np.random.default_rng([self._salt, _PREFIX])
        if self._tokenizer is None:
            return self._random_ids(rng, tokens)
        if self._spec.prompt_form is PromptForm.TEXT:
            return self._fit("", self._draw_words(rng), tokens)
        return self._word_ids(self._draw_words(rng), tokens)

    def count(self, text: str) -> int:
        """Tokens of a text as the server will count them, before any chat template."""
        assert self._tokenizer is not None
        with_bos = self._spec.endpoint is Endpoint.COMPLETIONS
        return len(self._tokenizer.encode(text, add_special=with_bos))

    def _prefix(self, class_index: int, tokens: int) -> Prompt:
        """The common beginning of a class, made once."""
        lengths = self._spec.classes[class_index].lengths
        as_text = self._spec.prompt_form is PromptForm.TEXT
        if not isinstance(lengths, SharedPrefix) or tokens < lengths.prefix:
            return "" if as_text else []
        if class_index not in self._prefixes:
            rng = np.random.default_rng([self._salt, class_index, _PREFIX])
            if self._tokenizer is None:
                self._prefixes[class_index] = self._random_ids(rng, lengths.prefix)
            elif as_text:
                self._prefixes[class_index] = self._fit("", self._draw_words(rng), lengths.prefix)
            else:
                words = self._draw_words(rng)
                self._prefixes[class_index] = self._word_ids(words, lengths.prefix)
        return self._prefixes[class_index]

    def _random_ids(self, rng: np.random.Generator, tokens: int) -> list[int]:
        assert self._token_ids is not None
        ids: list[int] = rng.integers(*self._token_ids, tokens).tolist()
        return ids

    def _draw_words(self, rng: np.random.Generator) -> Iterator[str]:
        """Words from random places of the corpus, in passages."""
        while True:
            if self._words is WORDS:
                indices = rng.integers(len(WORDS), size=_WORDS_DRAWN)
            else:
                begin = int(rng.integers(len(self._words)))
                indices = np.arange(begin, begin + _WORDS_DRAWN) % len(self._words)
            for index in indices:
                yield self._words[int(index)]

    def _word_ids(self, words: Iterator[str], tokens: int) -> list[int]:
        assert self._tokenizer is not None
        ids: list[int] = []
        while len(ids) < tokens:
            text = " " + " ".join(itertools.islice(words, tokens - len(ids)))
            ids += self._tokenizer.encode(text, add_special=False)
        return ids[:tokens]

    def _fit(self, begin: str, words: Iterator[str], tokens: int) -> str:
        """Words after `begin` until the whole has exactly `tokens` tokens."""
        parts = [begin] if begin else []
        count = self.count(begin)
        while count < tokens:
            parts += itertools.islice(words, max(1, (tokens - count) * 3 // 4))
            count = self.count(" ".join(parts))
        kept = 1 if begin else 0
        while count > tokens and len(parts) > kept:
            parts.pop()
            count = self.count(" ".join(parts))
        text = " ".join(parts)
        while count < tokens:
            longer = ((text + more, self.count(text + more)) for more in _FILLERS)
            found = next(((t, n) for t, n in longer if count < n <= tokens), None)
            if found is None:
                break
            text, count = found
        if count != tokens:
            raise ConfigError(
                f"no text of exactly {tokens} tokens was found with this tokenizer; "
                "try a longer prompt, or --prompt-form ids"
            )
        return text


def request_body(spec: BenchSpec, model: str | None, prompt: Prompt, output_tokens: int) -> bytes:
    """The JSON of one generation request."""
    body: dict[str, object] = {} if model is None else {"model": model}
    if spec.endpoint is Endpoint.CHAT:
        body["messages"] = [{"role": "user", "content": prompt}]
    else:
        body["prompt"] = prompt
    body |= {"max_tokens": output_tokens, "temperature": 0, "stream": True}
    if spec.ignore_eos:
        body["ignore_eos"] = True
    if spec.stream_usage:
        body["stream_options"] = {"include_usage": True}
    for key, value in spec.extra_body.items():
        if value is None:
            body.pop(key, None)
        else:
            body[key] = value
    return msgspec.json.encode(body)
