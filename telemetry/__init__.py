"""Facts, and the folds that turn them into timelines, the exact ledger, histograms, metrics, traces
and the journal. It knows nothing of the service that writes facts, or of the screens that read
folds.

    facts, numbers             what is recorded; quantiles and histograms
    pump                       moves facts from lanes to folds
    costs, host                the cost of steps; the machine
    clocks                     how far a node's clock is ahead of the gateway's
    requests, ledger, stats    timelines, where their time went, aggregates
    traces, metrics, journal   what leaves the process
"""
