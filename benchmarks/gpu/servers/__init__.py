"""Real servers on a GPU, over HTTP."""
