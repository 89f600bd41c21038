"""A byte-level tokenizer for models with random weights."""

from __future__ import annotations

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from service.text.token_bytes import byte_level_table
from service.text.tokenizer import Tokenizer

_VOCAB = {
    "tiny": 512,
    "small": 512,
    "smollm2-135m": 49_152,
    "llama-1b": 128_256,
    "llama-8b": 128_256,
    "qwen3-0.6b": 151_936,
}
_END = 256

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def dummy_tokenizer(shape: str) -> Tokenizer:
    """Tokens 0 to 255 are bytes, 256 ends the text, the others are the text `<id>`."""
    vocab = dict(byte_level_table())
    backend = Backend(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    size = _VOCAB.get(shape, 512)
    fillers = [f"<{token_id}>".encode() for token_id in range(_END + 1, size)]
    return Tokenizer(
        backend,
        token_bytes=[*(bytes([byte]) for byte in range(256)), b"", *fillers],
        special_ids=frozenset({_END}),
        bos_token_id=None,
        eos_token_ids=(_END,),
        add_bos=False,
        strip_first_space=False,
        chat_template=CHAT_TEMPLATE,
    )
