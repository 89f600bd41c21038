"""What other settings would have given every SLO class in the last minutes, by replay.

    answer, gain, words           the trials, what a gain is, and what is said of them
    offline, search, climb, lines the search: which settings, in which order, how many replays
    forecast, excerpt, judged     one setting: the part that is replayed, the verdicts at its end
    replicas, wider, alone        less demand, wider batches than recorded, requests on their own
    settings, pressure            settings by name; where requests wait
    answered                      a missed promise with what a search says of it
    thresholds                    every number that decides a search

It reads a recorded run, changes nothing on a server, and decides nothing: that is for the operator,
or the autopilot.
"""
