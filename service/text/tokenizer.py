"""Text to token ids and back, with the `tokenizers` library.

A tokenizer is loaded from a Hugging Face folder or from the metadata of a GGUF file; models with
random weights have one in code.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from tokenizers import Tokenizer as Backend

from service.config.settings import ConfigError, ModelKind, ModelRef
from service.text.token_bound import TokenBound, token_bound


class Tokenizer:
    """A model's tokenizer: encoding, special and end tokens, the exact bytes of each token.

    All methods are pure and thread-safe.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        token_bytes: Sequence[bytes],
        special_ids: frozenset[int],
        bos_token_id: int | None,
        eos_token_ids: tuple[int, ...],
        add_bos: bool,
        strip_first_space: bool,
        chat_template: str | None,
        suffix_ids: tuple[int, ...] = (),
    ) -> None:
        """`suffix_ids` end every text that is embedded, as some models for that have it."""
        self._backend = backend
        self._token_bytes = token_bytes
        self._special_ids = special_ids
        self._add_bos = add_bos
        self.bos_token_id = bos_token_id
        self.eos_token_ids = eos_token_ids
        self.strip_first_space = strip_first_space
        self.chat_template = chat_template
        self._suffix_ids = suffix_ids

    @property
    def vocab_size(self) -> int:
        return len(self._token_bytes)

    @property
    def special_ids(self) -> frozenset[int]:
        """Control tokens, which are not part of a text."""
        return self._special_ids

    def least_tokens(self, text: str) -> int:
        """A lower bound for the number of tokens of `text`, without encoding it; may be 0."""
        return 0 if self._bound is None else self._bound.least_tokens(text)

    @cached_property
    def _bound(self) -> TokenBound | None:
        """Computed at the first call, in tenths of a second."""
        return token_bound(self._backend, self._token_bytes)

    def backend_json(self) -> str:
        """The tokenizer as JSON, in the format of tokenizer.json."""
        text: str = self._backend.to_str()
        return text

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        """Token ids of a plain prompt, with BOS if the model uses one."""
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        if add_special and self._add_bos and self.bos_token_id is not None:
            return [self.bos_token_id, *ids]
        return ids

    def encode_to_embed(self, text: str) -> list[int]:
        """Token ids of a text whose states are pooled: with the end that the model wants."""
        return [*self.encode(text), *self._suffix_ids]

    def encode_chat(self, rendered: str) -> list[int]:
        """Token ids of a rendered chat template, which has all special tokens in it."""
        ids: list[int] = self._backend.encode(rendered, add_special_tokens=False).ids
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes of a token; empty for ids above the vocabulary, which some models have as
        padding."""
        return self._token_bytes[token_id] if token_id < len(self._token_bytes) else b""

    def token_text(self, token_id: int) -> str:
        """The token as text; invalid UTF-8 becomes U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", errors="replace")

    def token_id(self, text: str) -> int | None:
        """The id of the token that is spelt exactly so in the vocabulary."""
        found: int | None = self._backend.token_to_id(text)
        return found

    def token_string(self, token_id: int) -> str:
        """The token as the vocabulary spells it, such as `Ġthe`; empty for padding ids."""
        found: str | None = self._backend.id_to_token(token_id)
        return found or ""

    def is_special(self, token_id: int) -> bool:
        """Control tokens, which are not part of the text."""
        return token_id in self._special_ids

    def decode(self, token_ids: Sequence[int], skip_special: bool = True) -> str:
        """The text of `token_ids`."""
        data = b"".join(
            self.token_bytes(i) for i in token_ids if not (skip_special and i in self._special_ids)
        )
        if self.strip_first_space and data.startswith(b" "):
            data = data[1:]
        return data.decode("utf-8", errors="replace")


def load_tokenizer(model: ModelRef) -> Tokenizer:
    """Load the model's tokenizer. Raises ConfigError."""
    from service.text.dummy_tokenizer import dummy_tokenizer
    from service.text.gguf_tokenizer import gguf_tokenizer
    from service.text.hf_tokenizer import hf_tokenizer

    match model.kind:
        case ModelKind.GGUF:
            return gguf_tokenizer(Path(model.path))
        case ModelKind.HF_FOLDER:
            return hf_tokenizer(Path(model.path))
        case ModelKind.DUMMY:
            return dummy_tokenizer(model.path)


def broken(path: Path, why: object) -> ConfigError:
    return ConfigError(f"{path}: cannot build the tokenizer: {why}")
