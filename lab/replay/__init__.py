"""A recorded run, run again: exactly, or with changed limits on a modelled device."""
