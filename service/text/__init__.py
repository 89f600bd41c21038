"""Text to tokens and back. Imports only `service.config` and `service.model_files`.

- `tokenizer`: the interface; `gguf_tokenizer`, `hf_tokenizer`, `dummy_tokenizer` build one.
- `known_keys`, `rows`, `token_bytes`, `token_bound`: what they share.
- `schema_places`: where a JSON schema has schemas within it.
- `chat_template`, `detokenizer`: messages to a prompt, and tokens to text one at a time.
"""
