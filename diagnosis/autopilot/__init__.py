"""The autopilot: proposes a better limit, or applies it, measures what came of it, and keeps it or
goes back.

    bounds      which limits it may touch, and how far
    books       facts: who met the SLO, the load, the limits in force, what others changed
    chance      sequential tests: is it the promise, what was before, or worse?
    proposal    what a search found, if it may be proposed
    trial       one change, from when it is in force until it is known what came of it
    memory      how long to leave a limit alone, what was rolled back under which load
    thresholds  every number of the autopilot
    words       decisions as text
    desk        what goes out
    attempt     a change that is applied: measured, kept or rolled back
    pilot       the states
    view        what `/debug/autopilot` shows

It reads no clock and does nothing by itself: facts, answers and the time go in, decisions, a wish
to search and a wish to set limits come out. The same input gives the same decisions.
"""
