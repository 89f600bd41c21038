"""One tensor-parallel rank's part of a model (`shard`), and the collectives of a step."""
