"""Several servers at once: their accounts are read side by side, and judged as a fleet.

read     one account of each server and dump, none of which waits for another
poll     the same again and again, for the monitor
panels   one line a replica, and what is merged; pure functions
screen   the panels for a terminal
text     the diagnosis of a fleet as lines of text
app      the monitor of several servers
"""
