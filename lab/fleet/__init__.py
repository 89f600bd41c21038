"""More than one engine in virtual time."""
