"""Aggregates of many requests: histograms, windows, SLOs, counters."""
