"""Everything that touches torch: the decoder, its weights, its cache and its executor."""
