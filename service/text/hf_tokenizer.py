"""A tokenizer from a Hugging Face folder: tokenizer.json and its companions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from service.text.token_bytes import byte_level_bytes, byte_level_table, metaspace_bytes
from service.text.tokenizer import Tokenizer, broken


def hf_tokenizer(folder: Path) -> Tokenizer:
    """Raises ConfigError when a file is missing or broken."""
    path = folder / "tokenizer.json"
    if not path.exists():
        raise broken(path, "the file is missing")
    try:
        backend = Backend.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise broken(path, error) from error
    settings = _json(folder / "tokenizer_config.json")
    described: dict[str, Any] = _json(path)
    byte_level = "ByteLevel" in json.dumps(described.get("decoder") or {})
    bos = _token_id(backend, settings.get("bos_token"))
    return Tokenizer(
        backend,
        token_bytes=_all_bytes(backend, byte_level),
        special_ids=frozenset(
            token_id
            for token_id, token in backend.get_added_tokens_decoder().items()
            if token.special
        ),
        bos_token_id=bos,
        eos_token_ids=_end_tokens(folder, backend, settings),
        add_bos=bos is not None and backend.encode("a").ids[:1] == [bos],
        strip_first_space=not byte_level and "Metaspace" in json.dumps(described),
        chat_template=_chat_template(folder, settings),
    )


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


def _end_tokens(folder: Path, backend: Backend, settings: dict[str, Any]) -> tuple[int, ...]:
    found: list[int] = []
    for name in ("generation_config.json", "config.json"):
        stated = _json(folder / name).get("eos_token_id")
        if stated is not None:
            found += stated if isinstance(stated, list) else [int(stated)]
    named = _token_id(backend, settings.get("eos_token"))
    if named is not None:
        found.append(named)
    return tuple(dict.fromkeys(found))


def _token_id(backend: Backend, token: Any) -> int | None:
    text = token.get("content") if isinstance(token, dict) else token
    if not isinstance(text, str):
        return None
    token_id: int | None = backend.token_to_id(text)
    return token_id


def _chat_template(folder: Path, settings: dict[str, Any]) -> str | None:
    separate = folder / "chat_template.jinja"
    if separate.exists():
        return separate.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):  # several named templates
        named = {entry.get("name"): entry.get("template") for entry in template}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise broken(path, error) from error
    return value if isinstance(value, dict) else {}
