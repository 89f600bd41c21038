"""From logits to tokens: grammar masks, penalties, filters, the draw. Nothing here depends on the
batch that a row is in."""
