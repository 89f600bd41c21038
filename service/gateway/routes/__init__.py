"""The routes, and their description as OpenAPI."""
