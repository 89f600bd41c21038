"""Text to token ids and back, over the `tokenizers` library.

A tokenizer comes from a Hugging Face folder, from the metadata of a GGUF file, or, for
models of random weights, from code. Everything a server needs to know about the
vocabulary is answered here: special tokens, end tokens, the exact bytes of a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from tokenizers import Tokenizer as Backend

from service.config.settings import ConfigError, ModelKind, ModelRef
from service.text.token_bound import TokenBound, token_bound


class Tokenizer:
    """One vocabulary. All methods are pure and may be called from any thread."""

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
    ) -> None:
        self._backend = backend
        self._token_bytes = token_bytes
        self._special_ids = special_ids
        self._add_bos = add_bos
        self.bos_token_id = bos_token_id
        self.eos_token_ids = eos_token_ids
        self.strip_first_space = strip_first_space
        self.chat_template = chat_template

    @property
    def vocab_size(self) -> int:
        return len(self._token_bytes)

    @property
    def special_ids(self) -> frozenset[int]:
        """Control tokens, which are not part of a text."""
        return self._special_ids

    def least_tokens(self, text: str) -> int:
        """The text has at least so many, which its length says without encoding it; 0 where
        nothing is known."""
        return 0 if self._bound is None else self._bound.least_tokens(text)

    @cached_property
    def _bound(self) -> TokenBound | None:
        """Found when it is first asked for: that takes tenths of a second."""
        return token_bound(self._backend, self._token_bytes)

    def backend_json(self) -> str:
        """The rules of encoding, in the format of the `tokenizers` library."""
        text: str = self._backend.to_str()
        return text

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        """Ids of a plain prompt, with the model's BOS if it wants one."""
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        if add_special and self._add_bos and self.bos_token_id is not None:
            return [self.bos_token_id, *ids]
        return ids

    def encode_chat(self, rendered: str) -> list[int]:
        """Ids of a rendered chat template, which contains all special tokens it wants."""
        ids: list[int] = self._backend.encode(rendered, add_special_tokens=False).ids
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """Exact bytes that the token stands for in a text; none for the padding that some
        models have above their vocabulary."""
        return self._token_bytes[token_id] if token_id < len(self._token_bytes) else b""

    def token_text(self, token_id: int) -> str:
        """The token for people: invalid UTF-8 becomes U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", errors="replace")

    def is_special(self, token_id: int) -> bool:
        """Control tokens, which are not part of the text."""
        return token_id in self._special_ids

    def decode(self, token_ids: Sequence[int], skip_special: bool = True) -> str:
        """The whole text of `token_ids`."""
        data = b"".join(
            self.token_bytes(i) for i in token_ids if not (skip_special and i in self._special_ids)
        )
        if self.strip_first_space and data.startswith(b" "):
            data = data[1:]
        return data.decode("utf-8", errors="replace")


def load_tokenizer(model: ModelRef) -> Tokenizer:
    """The model's own tokenizer. Raises ConfigError with one line."""
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
