"""One file a family of models: what its configuration and its files say, in our words."""
