"""Connections and HTTP. It must not know the OpenAI API, nor the engine.

- `listener`, `acceptor`, `connection`, `closing_transport`, `arrival`, `plain_http`: sockets, their
  limits, and when a request arrived.
- `asgi`, `body_room`, `http_errors`: helpers and errors of the routes.
- `security`, `browsers`: keys, `Host` and `Origin`.
- `limits`, `limits_doc`: every cap on what a client sends, and the page about them.
"""
