"""Numbers by themselves: quantiles, HDR counters, sliding windows."""
