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

from service.config import ConfigError, ModelKind, ModelRef
from service.text.token_bound import longest_token_bytes


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

    @cached_property
    def longest_token_bytes(self) -> int | None:
        """A text of more bytes than that times N has more than N tokens; None where no such
        bound is known."""
        return longest_token_bytes(self._backend, self._token_bytes)

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


def byte_level_table() -> dict[str, int]:
    """GPT-2's printable stand-ins for bytes: character -> byte value."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(byte): byte for byte in printable}
    stand_in = 256
    for byte in range(256):
        if byte not in printable:
            table[chr(stand_in)] = byte
            stand_in += 1
    return table


def byte_level_bytes(token: str, table: dict[str, int]) -> bytes:
    """Bytes of a byte-level BPE token; a token that is not byte-level is its own text."""
    try:
        return bytes(table[character] for character in token)
    except KeyError:
        return token.encode()


def metaspace_bytes(token: str) -> bytes:
    """Bytes of a SentencePiece token: U+2581 is a space, <0xNN> a raw byte."""
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes([int(token[3:5], 16)])
        except ValueError:
            pass
    return token.replace("\u2581", " ").encode()


def broken(path: Path, why: object) -> ConfigError:
    return ConfigError(f"{path}: cannot build the tokenizer: {why}")
