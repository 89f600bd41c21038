"""Aggregates of many requests: histograms, windows, SLOs, counters.

Folds and listeners; no metric names and no screens.

    histograms, histogram_report   latency histograms, and their JSON for other processes
    slo, slo_report, slo_merge     goodput, error budget burn, cost; what is reported, merged
    window, window_fold, totals    the Snapshot that all views read, and the fold that takes it
    drain_rate                     Retry-After
"""
