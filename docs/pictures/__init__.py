"""The pictures of the documentation, each drawn from a real run of a real server."""
