"""Subcommands of the phasescope console script, one module each."""
