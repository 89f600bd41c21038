"""The command line: one module a subcommand, each with `register` and `run`.

- `main`: finds the subcommand and turns known errors into one line.
- `settings_flags`: the flags of `serve` and `config`, made from `service.config`.
- `operator`: the commands of the operator's kit, such as `report`.
- `source`: the arguments that say where facts come from, and keys, shared by the commands that
  read them.
- `diagnose_flags`: which flags of `diagnose` go together.
- `outputs`: files that are written after a long run. `extras`: what needs more libraries.
- `internal`: commands that the server starts its own processes with.
- `say`: what a command says to people.

A module imports what its command needs inside `run`, so that `--help` and the start of `serve` stay
fast.
"""
