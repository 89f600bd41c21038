"""Aggregates of many requests: histograms, windows, SLOs, counters.

Folds and listeners; no metric names and no screens.

    histograms, histogram_report   latency histograms, and their JSON for other processes
    slo, slo_report, slo_merge     goodput, error budget burn, cost; what is reported, merged
    snapshot, window_fold          the Snapshot that all views read, and the fold that takes it
    totals                         counters since the start
    grid                           what the batch grid keeps of one sequence
    coverage                       how much of requests' time is observed
    step_targets                   steps whose latency target cannot be met
    adapters                       adapters that are known, placed, and waited for
    drain_rate                     Retry-After
"""
