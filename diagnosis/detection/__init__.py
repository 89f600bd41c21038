"""Detection: what happened per half second, what is normal, and when requests became late.

    aggregator, counts, requests, steps  a fold over facts: sums per half second, steps as columns
    holders, gpus                        who holds blocks; what GPUs say of themselves
    reference, learning                  the baseline, and when it is learnt
    excess                               requests in flight beyond the baseline; CUSUM alarms
    window, history                      the stretch that is judged; findings as span events

It names no cause: that is `diagnosis.attribution`.
"""
