"""Which engines a gateway has: a small interface, and a static file behind it.

- `members`: what a membership says. `static_file`: a TOML file, read again when it changes.
- `roll`: engines that say themselves that they are there, and the file that is written of it.
"""
