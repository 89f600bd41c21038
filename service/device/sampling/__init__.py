"""From logits to tokens: filters, draws, grammars."""
