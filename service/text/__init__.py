"""Text in, tokens out, and back: tokenizer, chat template, incremental detokenizer."""
