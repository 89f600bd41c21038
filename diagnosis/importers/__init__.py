"""Evidence that other tools have written of an engine, and what can be told from it.

    formats/*  ->  records  ->  measured in two windows  ->  judge  ->  what is and cannot be told

A record has what its file says and no more: times of requests, steps, or scrapes of counters. It
has no batch membership, so nobody is named as a culprit, and most causes cannot be told from it:
`ways` says which can, from what and how surely, and is the table in the documentation.

    registry, kinds, reading            which module reads which kind; lines of files
    of_requests, of_scrapes, of_steps   records of requests, of scrapes and of steps
    windows, quantities                 the two windows, and what is measured in them
    parts, regression                   how the lateness divides
    absolute, findings, judge, verdict  from these to causes, and what is said
    thresholds                          every number that decides
"""
