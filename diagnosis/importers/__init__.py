"""Evidence that other tools have written of an engine, and what can be told from it.

    formats/*  ->  records  ->  measured in two windows  ->  judge  ->  what is and cannot be told

A record has what its file says and no more: times of requests, steps, or scrapes of counters. It
has no batch membership, so nobody is named as a culprit, and most causes cannot be told from it:
`ways` says which can, from what and how surely, and is the table in the documentation.
"""
