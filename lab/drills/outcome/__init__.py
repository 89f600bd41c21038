"""What is kept of an episode: the truth, sealed, and what clients saw."""
