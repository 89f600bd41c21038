"""Builds a tokenizer from a Hugging Face folder: tokenizer.json, tokenizer_config.json."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from service.model_files.json_file import read_object
from service.model_files.strict_keys import StrictKeys
from service.text.known_keys import TOKENIZER_CONFIG
from service.text.rows import refuse_ids_beyond, refuse_tokens_beyond
from service.text.token_bytes import byte_level_bytes, byte_level_table, metaspace_bytes
from service.text.tokenizer import Tokenizer, broken

# Classes of transformers that use add_bos_token and add_eos_token, not the rule in tokenizer.json.
_CLASSES_WITH_FLAGS = frozenset({"LlamaTokenizer", "LlamaTokenizerFast", "CodeLlamaTokenizerFast"})

_MOST_DIGITS = 9  # of a token's id


def hf_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a folder. Raises ConfigError if a file is missing or not supported."""
    path = folder / "tokenizer.json"
    if not path.exists():
        raise broken(path, "the file is missing")
    try:
        backend = Backend.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise broken(path, error) from error
    backend.no_truncation()  # prompts are encoded whole and one at a time
    backend.no_padding()
    settings_path = folder / "tokenizer_config.json"
    settings = StrictKeys(settings_path, _json(settings_path))
    decoders = list(_decoders(_json(path).get("decoder")))
    byte_level = any(decoder.get("type") == "ByteLevel" for decoder in decoders)
    bos = _token_id(backend, settings.take("bos_token"))
    ends = _end_tokens(folder, backend, settings.take("eos_token"))
    rows = _json(folder / "config.json").get("vocab_size")
    if isinstance(rows, int):
        refuse_tokens_beyond(path, backend.get_vocab(with_added_tokens=True), rows)
        refuse_ids_beyond(folder, "eos_token_id", ends, rows)
    _check_added(settings, backend)
    embeds = (folder / "modules.json").is_file()
    add_bos, suffix_ids = _around_prompts(settings, backend, bos, ends if embeds else ())
    tokenizer = Tokenizer(
        backend,
        token_bytes=_all_bytes(backend, byte_level),
        special_ids=frozenset(
            token_id
            for token_id, token in backend.get_added_tokens_decoder().items()
            if token.special
        ),
        bos_token_id=bos,
        eos_token_ids=ends,
        add_bos=add_bos,
        suffix_ids=suffix_ids,
        strip_first_space=not byte_level and any(map(_drops_first_space, decoders)),
        chat_template=_chat_template(folder, settings.take("chat_template")),
    )
    settings.finish(TOKENIZER_CONFIG)
    return tokenizer


def _decoders(described: Any) -> Iterator[dict[str, Any]]:
    """The decoder of tokenizer.json, or all of a sequence; the library has checked them."""
    if isinstance(described, dict) and described.get("type") == "Sequence":
        for part in described["decoders"]:
            yield from _decoders(part)
    elif isinstance(described, dict):
        yield described


def _drops_first_space(decoder: dict[str, Any]) -> bool:
    """Whether it takes away the blank that was put before the text. Files of older versions say
    `add_prefix_space` instead of a scheme."""
    match decoder:
        case {"type": "Metaspace", "prepend_scheme": str(scheme)}:
            return scheme != "never"
        case {"type": "Metaspace"}:
            return decoder.get("add_prefix_space") is not False
        case {"type": "Strip", "content": " ", "start": int(start)}:
            return start >= 1
        case _:
            return False


def _around_prompts(
    settings: StrictKeys, backend: Backend, bos: int | None, ends: tuple[int, ...]
) -> tuple[bool, tuple[int, ...]]:
    """Whether prompts begin with BOS, and the token of `ends` that they end with, if any: by
    tokenizer.json, or by a flag for some classes. Only a model for embeddings has `ends`: before an
    answer an end is wrong. Raises ConfigError if prompts would get other tokens."""
    begins, adds_end = settings.take("add_bos_token"), settings.take("add_eos_token", False)
    if str(settings.peek("tokenizer_class")) in _CLASSES_WITH_FLAGS and begins is not None:
        if adds_end:
            raise settings.refused("add_eos_token", adds_end, "prompts have no end token")
        return bool(begins) and bos is not None, ()
    bare, whole = (backend.encode("a", add_special_tokens=added).ids for added in (False, True))
    before = 0 if whole[: len(bare)] == bare else 1
    first, last = whole[:before], whole[before + len(bare) :]
    known_first = first in ([], [bos]) and whole[before : before + len(bare)] == bare
    if not known_first or (last and (len(last) > 1 or last[0] not in ends)):
        raise broken(
            settings.path.with_name("tokenizer.json"),
            "it puts tokens around a prompt, and bos_token in tokenizer_config.json is not all",
        )
    return bool(first), tuple(last)


def _check_added(settings: StrictKeys, backend: Backend) -> None:
    """Check that added tokens in tokenizer_config.json are those of tokenizer.json. Raises
    ConfigError."""
    added = settings.take("added_tokens_decoder", {})
    if not isinstance(added, dict):
        raise settings.refused("added_tokens_decoder", added, "an object is expected")
    for token_id, token in added.items():
        text = token.get("content") if isinstance(token, dict) else token
        is_id = token_id.isdecimal() and len(token_id) <= _MOST_DIGITS
        if not is_id or backend.id_to_token(int(token_id)) != text:
            raise settings.refused(
                "added_tokens_decoder", {token_id: text}, "tokenizer.json has another token there"
            )
    for key in ("additional_special_tokens", "extra_special_tokens"):
        named = settings.take(key, [])
        if not isinstance(named, dict | list):
            raise settings.refused(key, named, "a list of tokens is expected")
        for token in named.values() if isinstance(named, dict) else named:
            if _token_id(backend, token) is None:
                raise settings.refused(key, token, "tokenizer.json has no such token")


def _all_bytes(backend: Backend, byte_level: bool) -> list[bytes]:
    vocab = backend.get_vocab(with_added_tokens=True)
    added = backend.get_added_tokens_decoder()
    table = byte_level_table()
    found = [b""] * (max(vocab.values(), default=-1) + 1)
    for token, token_id in vocab.items():
        if token_id in added:
            found[token_id] = token.encode()
        elif byte_level:
            found[token_id] = byte_level_bytes(token, table)
        else:
            found[token_id] = metaspace_bytes(token)
    return found


def _end_tokens(folder: Path, backend: Backend, stated_token: Any) -> tuple[int, ...]:
    """The ids of the end tokens, from three files. Raises ConfigError."""
    found: list[int] = []
    for name in ("generation_config.json", "config.json"):
        stated = _json(folder / name).get("eos_token_id")
        if stated is not None:
            found += stated if isinstance(stated, list) else [stated]
        if not all(type(token_id) is int for token_id in found):
            raise broken(folder / name, f"eos_token_id {stated!r} is no token")
    named = _token_id(backend, stated_token)
    if named is not None:
        found.append(named)
    return tuple(dict.fromkeys(found))


def _token_id(backend: Backend, token: Any) -> int | None:
    text = token.get("content") if isinstance(token, dict) else token
    if not isinstance(text, str):
        return None
    token_id: int | None = backend.token_to_id(text)
    return token_id


def _chat_template(folder: Path, template: Any) -> str | None:
    """From a file of its own, or from tokenizer_config.json. Raises ConfigError."""
    separate = folder / "chat_template.jinja"
    if separate.exists():
        try:
            return separate.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise broken(separate, error) from error
    if isinstance(template, list):  # several named templates
        if not all(isinstance(entry, dict) for entry in template):
            raise broken(
                folder / "tokenizer_config.json", "chat_template has entries that are no objects"
            )
        defaults = [entry for entry in template if entry.get("name") == "default"]
        template = defaults[-1].get("template") if defaults else None
    return template if isinstance(template, str) else None


def _json(path: Path) -> dict[str, Any]:
    """Empty for a file that is not there. Raises ConfigError."""
    return read_object(path) if path.exists() else {}
