"""Tokenizer, detokenizer, stop strings and chat templates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from service.config.settings import ConfigError, ModelKind, ModelRef
from service.device.spec import DUMMY_SHAPES
from service.text.chat_template import TemplateError, render_chat
from service.text.detokenizer import Detokenizer, StopScanner
from service.text.dummy_tokenizer import dummy_tokenizer
from service.text.tokenizer import Tokenizer, load_tokenizer
from tests.support.examples import examples

BYTES = dummy_tokenizer("tiny")
TEXTS = [
    "Hello, world!",
    "The year 2026 has 365 days; 12345678 seconds.",
    "  leading and   inner   spaces\n\n\ttabs\r\n",
    "naïve café — 东京 🌍👩‍🚀 Привет",
    "def f(x):\n    return x ** 2  # square\n",
    "it's they'll I'd we've",
    "",
]


@pytest.fixture(scope="module")
def ours(default_model: Path) -> Tokenizer:
    return load_tokenizer(
        ModelRef(kind=ModelKind.GGUF, path=str(default_model), name="SmolLM2-135M-Instruct")
    )


@pytest.fixture(scope="module")
def fields(default_model: Path) -> dict[str, Any]:
    """The file's metadata as the gguf package reads them, which takes seconds."""
    from gguf import GGUFReader

    return dict(GGUFReader(default_model).fields)


@pytest.fixture(scope="module")
def oracle(fields: dict[str, Any]) -> Backend:
    """An independent assembly: the gguf package's reader, Digits and ByteLevel by hand."""
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(m.split(" ", 1)) for m in fields["tokenizer.ggml.merges"].contents()]
    backend = Backend(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    backend.decoder = decoders.ByteLevel()
    return backend


@pytest.mark.parametrize("text", TEXTS)
def test_the_default_tokenizer_follows_the_published_rules(
    ours: Tokenizer, oracle: Backend, text: str
) -> None:
    """Same ids, and the same text back."""
    ids = ours.encode(text)

    assert ids == oracle.encode(text).ids
    assert ours.decode(ids) == text == oracle.decode(ids, skip_special_tokens=False)


def test_digits_are_split_one_by_one(ours: Tokenizer) -> None:
    """The rule that a conversion elsewhere lost."""
    ids = ours.encode("12345")

    assert [ours.token_text(token_id) for token_id in ids] == ["1", "2", "3", "4", "5"]


def test_chat_markers_are_single_special_tokens(ours: Tokenizer) -> None:
    """In a rendered chat they are control tokens, and they end a turn."""
    ids = ours.encode_chat("<|im_start|>user\nHi<|im_end|>")

    assert (ids[0], ids[-1]) == (1, 2)
    assert ours.is_special(1)
    assert 2 in ours.eos_token_ids
    assert ours.decode(ids) == "user\nHi"


def test_chat_rendering_equals_transformers(
    ours: Tokenizer, oracle: Backend, fields: dict[str, Any]
) -> None:
    """Same template, same messages, same text."""
    from transformers import PreTrainedTokenizerFast

    template = fields["tokenizer.chat_template"].contents()
    theirs = PreTrainedTokenizerFast(tokenizer_object=oracle, chat_template=template)
    messages = [
        {"role": "user", "content": "What is 2 + 2?"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "Sure?"},
    ]
    assert ours.chat_template is not None

    expected = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert render_chat(ours.chat_template, messages) == expected


def test_an_error_of_a_chat_template_is_one_line() -> None:
    """raise_exception and Jinja's own errors become TemplateError; the sandbox holds."""
    message = [{"role": "user", "content": "x"}]
    with pytest.raises(TemplateError, match="roles must alternate"):
        render_chat("{{ raise_exception('roles must alternate') }}", message)
    with pytest.raises(TemplateError):
        render_chat("{{ messages.append(1) }}", message)
    with pytest.raises(TemplateError):
        render_chat("{{ ''.__class__.__mro__ }}", message)


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=60))
def test_pieces_of_text_are_whole_characters_and_add_up(text: str) -> None:
    """A byte tokenizer spreads each character over tokens; no piece shows half of one."""
    detokenizer = Detokenizer(BYTES)
    text = text.encode("utf-8", "ignore").decode()
    pieces = [detokenizer.push(token_id) for token_id in BYTES.encode(text)]

    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text
    assert "".join(pieces) + detokenizer.finish() == text


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=40))
def test_any_bytes_detokenize_to_the_same_text_as_all_at_once(data: bytes) -> None:
    """Invalid UTF-8 becomes U+FFFD exactly as in one piece."""
    detokenizer = Detokenizer(BYTES)
    text = "".join(detokenizer.push(byte) for byte in data) + detokenizer.finish()

    assert text == data.decode("utf-8", errors="replace")


@examples(133, 400)
@given(
    text=st.text(alphabet="ab|<>", max_size=40),
    stops=st.lists(st.text(alphabet="ab|<>", min_size=1, max_size=5), min_size=1, max_size=3),
    cuts=st.lists(st.integers(1, 7), min_size=40, max_size=40),
)
def test_a_stop_string_is_found_however_the_text_is_cut(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    """What comes out is a prefix without any stop, and never more than the first find."""
    scanner = StopScanner(stops)
    out, hit, at = "", False, 0
    for size in cuts:
        piece, hit = scanner.push(text[at : at + size])
        out += piece
        at += size
        if hit or at >= len(text):
            break
    if not hit:
        out += scanner.finish()

    assert hit == any(stop in text[:at] for stop in stops)
    if hit:
        assert text.startswith(out)
        assert not any(stop in out for stop in stops)
        assert any(text.startswith(stop, len(out)) for stop in stops)
    else:
        assert out == text


@settings(max_examples=400, deadline=None)
@given(
    text=st.text(alphabet="ab", max_size=40),
    stops=st.lists(st.text(alphabet="ab", min_size=1, max_size=9), min_size=1, max_size=3),
    cuts=st.lists(st.integers(1, 7), min_size=40, max_size=40),
)
def test_just_the_longest_beginning_of_a_stop_string_is_held_back(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    """As it is defined: all that is held is searched again with each piece."""
    scanner, held, at = StopScanner(stops), "", 0
    beginnings = {stop[:length] for stop in stops for length in range(len(stop))}
    for size in cuts:
        piece = text[at : at + size]
        held, at = held + piece, at + size
        hits = [(held.find(stop), len(stop)) for stop in stops if stop in held]
        keep = max(len(beginning) for beginning in beginnings if held.endswith(beginning))
        cut = min(hits)[0] if hits else len(held) - keep

        assert scanner.push(piece) == (held[:cut], bool(hits))
        if hits:
            return
        held = held[cut:]
    assert scanner.finish() == held


class CountedReads(str):
    """A text that counts how often its characters are looked at."""

    reads = 0

    def __getitem__(self, key: Any) -> str:
        self.reads += 1
        return super().__getitem__(key)


def test_a_character_of_the_text_is_compared_with_a_stop_string_twice_at_most_on_average() -> None:
    """Whatever a client makes a stop string and a text of: all requests wait for it."""
    words = ("a" * 1023 + "b", "a" * 512 + "b" * 512, "ab" * 512, "b" * 1024, "aab" * 300)
    stops, tokens = [CountedReads(word) for word in words], 4000
    scanner = StopScanner(stops)
    for _ in range(tokens):
        scanner.push("a")

    for stop in stops:
        assert stop.reads <= 2 * (tokens + len(stop)), stop[:8]


@pytest.fixture(scope="module")
def spaced(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Of a GGUF file of the llama kind: spaces are U+2581."""
    import gguf

    path = tmp_path_factory.mktemp("spaced") / "spm.gguf"
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [2, 3, 3, *[6] * 256]
    scores = [0.0] * len(pieces)
    for rank, piece in enumerate(["\u2581", "h", "i", "hi", "\u2581hi"]):
        pieces.append(piece)
        kinds.append(1)
        scores.append(-float(rank))
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(pieces)
    writer.add_token_scores(scores)
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return load_tokenizer(ModelRef(kind=ModelKind.GGUF, path=str(path), name="spm"))


def test_a_sentencepiece_gguf_tokenizes_by_score(spaced: Tokenizer) -> None:
    """Unknown characters fall back to bytes."""
    ids = spaced.encode("hi hi é")

    assert ids[0] == 1
    assert [spaced.token_string(i) for i in ids[1:3]] == ["\u2581hi", "\u2581hi"]
    assert spaced.decode(ids) == "hi hi é"
    assert spaced.eos_token_ids == (2,)


def test_what_continues_a_text_keeps_the_space_that_it_begins_with(spaced: Tokenizer) -> None:
    """A text of its own begins without."""
    prompt, output = spaced.encode("hi"), spaced.encode("hi hi", add_special=False)

    def text(continues: bool) -> str:
        detokenizer = Detokenizer(spaced, continues=continues)
        return "".join(map(detokenizer.push, output)) + detokenizer.finish()

    assert spaced.decode(prompt) + text(continues=True) == spaced.decode([*prompt, *output])
    assert (text(continues=True), text(continues=False)) == (" hi hi", "hi hi")


def test_a_hugging_face_folder(tmp_path: Path) -> None:
    """tokenizer.json with settings beside it: BOS, end tokens and template are honoured."""
    backend = Backend(models.BPE(vocab={"a": 0, "b": 1, "ab": 2}, merges=[("a", "b")]))
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<end>"])
    backend.save(str(tmp_path / "tokenizer.json"))
    settings_json = {"eos_token": "<end>", "chat_template": "{{ messages[0]['content'] }}"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings_json))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 1]}))
    tokenizer = load_tokenizer(
        ModelRef(kind=ModelKind.HF_FOLDER, path=str(tmp_path), name="folder")
    )

    assert tokenizer.encode("abb") == [2, 1]
    assert tokenizer.eos_token_ids == (3, 1)
    assert tokenizer.is_special(3)
    assert tokenizer.chat_template == "{{ messages[0]['content'] }}"
    assert tokenizer.token_bytes(99) == b""


def test_a_broken_tokenizer_is_one_line_of_error(tmp_path: Path) -> None:
    """The file is named."""
    model = ModelRef(kind=ModelKind.HF_FOLDER, path=str(tmp_path), name="folder")
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        load_tokenizer(model)
    (tmp_path / "tokenizer.json").write_text("{broken")
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        load_tokenizer(model)


@pytest.mark.parametrize("shape", DUMMY_SHAPES)
def test_a_dummy_vocabulary_is_as_large_as_its_model(shape: str) -> None:
    """Every id that random weights may sample has bytes."""
    assert dummy_tokenizer(shape).vocab_size == DUMMY_SHAPES[shape].vocab
