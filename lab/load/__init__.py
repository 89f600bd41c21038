"""The load generator: drives any OpenAI-compatible server over HTTP and measures in the client."""
