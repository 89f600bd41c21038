"""Detection: what happened per half second, what is normal, and when requests became late.

    aggregator, counts, steps            a fold over facts: sums per half second, steps as columns
    requests, request_state              each request through its stages
    holders, gpus                        who holds blocks; what GPUs say of themselves
    reference, learning                  the baseline, and when it is learnt
    excess                               requests in flight beyond the baseline; CUSUM alarms
    late, blows, tail_thresholds         late tokens, and causes that come back
    passing                              whether the one blow of an alarm is over
    window, history                      the stretch that is judged; findings as span events

It names no cause: that is `diagnosis.attribution`.
"""
