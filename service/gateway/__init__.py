"""The HTTP side: OpenAI-compatible routes, the bridge to the engine, its supervisor."""
