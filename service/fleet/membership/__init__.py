"""Which engines a gateway has: a small interface; a static file, or heartbeats of engines.

- `members`: what a membership says. `static_file`: a TOML file, read again when it changes.
- `heartbeat_registry`: engines that say themselves that they are there, and the file that is
  written of it.
"""
