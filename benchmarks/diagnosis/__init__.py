"""Does the diagnosis name what was done? Episodes with real faults, and their score."""
