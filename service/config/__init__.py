"""Settings: typed, validated once, never changed after the start."""
