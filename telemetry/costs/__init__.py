"""What a step costs: one model, its terms, and its named presets."""
