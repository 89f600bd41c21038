"""Which engines a gateway has: a small interface, and a static file behind it.

- `members`: what a membership says. `static_file`: a TOML file, read again when it changes.
"""
