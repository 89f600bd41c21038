"""What other settings would have given every SLO class in the last minutes, by replay.

It owns the forecast of a setting, the search for the best one, and the rule of what a gain is. It
reads a recorded run, changes nothing on a server, and decides nothing: that is the operator's, or
the autopilot's.
"""
