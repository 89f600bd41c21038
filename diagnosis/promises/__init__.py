"""Promises: which SLO classes are missed, since when, by how much, and in which form.

    chance       is a share of misses more than chance?
    attainment   one class over the last minutes: missed, or met again
    class_book   what is kept of one SLO class
    book_keeper  files each request in the book of its class, as good or late
    step_clock   where the engine's time went, as running sums
    requests     live requests: late as soon as that is sure
    margins      what one request and all requests need at the fitted cost
    form         impossible, one class, misconfigured, or at its limit
    promises     the fold, and the finding
    thresholds   every number that decides

It needs no baseline: a server that has missed its SLO since it started is not healthy.
"""
