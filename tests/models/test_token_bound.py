"""A text's length alone says how many tokens it has at least, where that can be known."""

from __future__ import annotations

import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from service.config.settings import ModelKind, ModelRef
from service.text.dummy_tokenizer import dummy_tokenizer
from service.text.token_bound import token_bound
from service.text.token_bytes import byte_level_table
from service.text.tokenizer import Tokenizer, load_tokenizer


@pytest.fixture(scope="module")
def real(default_model: Path) -> Tokenizer:
    return load_tokenizer(ModelRef(kind=ModelKind.GGUF, path=str(default_model), name="x"))


@settings(max_examples=300, deadline=None)
@example(" " * 500)
@example("\x04" * 300 + "\U000c0000")
@example("<|im_start|>" * 50)
@given(st.text(max_size=200))
def test_no_text_has_fewer_tokens_than_its_length_says(real: Tokenizer, text: str) -> None:
    assert real.least_tokens(text) <= len(real.encode(text))


def test_the_bound_is_close_enough_to_refuse_by(real: Tokenizer) -> None:
    assert real.least_tokens("hello world. " * 100_000) > 8192
    assert dummy_tokenizer("tiny").least_tokens("x" * 1000) == 1000


def byte_level(**parts: Any) -> Backend:
    backend = Backend(models.BPE(vocab=dict(byte_level_table()), merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    for name, part in parts.items():
        setattr(backend, name, part)
    return backend


def bound_of(backend: Backend) -> Any:
    return token_bound(backend, [bytes([byte]) for byte in range(256)] + [b"<mask>"])


def test_a_tokenizer_that_loses_text_has_no_bound() -> None:
    greedy = byte_level()
    greedy.add_tokens([AddedToken("<mask>", lstrip=True)])
    cut = byte_level()
    cut.enable_truncation(10)
    removed = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel(False)]
    )
    losing = [
        greedy,
        cut,
        byte_level(normalizer=normalizers.NFKC()),
        byte_level(normalizer=normalizers.Strip()),
        byte_level(normalizer=normalizers.Replace("  ", " ")),
        byte_level(pre_tokenizer=removed),
        byte_level(pre_tokenizer=pre_tokenizers.Whitespace()),
        Backend(models.WordLevel(vocab={"a": 0}, unk_token="a")),
    ]

    assert bound_of(byte_level()).longest_bytes == 1
    assert [bound_of(backend) for backend in losing] == [None] * len(losing)


def test_canonical_forms_shorten_a_text_by_less_than_the_bound_grants() -> None:
    granted = bound_of(byte_level(normalizer=normalizers.NFC())).longest_bytes
    shrunk = [
        len(text.encode()) / len(unicodedata.normalize(form, text).encode())
        for form in ("NFC", "NFD")
        for text in (
            *(chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000),
            *(unicodedata.normalize("NFD", chr(code)) for code in range(0xAC00, 0xD7A4)),
        )
    ]

    assert 1 < max(shrunk) <= 3 < granted
