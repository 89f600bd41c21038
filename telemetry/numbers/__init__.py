"""Numbers without facts: quantiles, HDR histograms, sliding windows.

quantiles   the one definition of a percentile
hdr         histograms as arrays, and as exponential buckets
intervals   sets of half-open intervals of nanoseconds
windows     the values of the last seconds and minutes
"""
