"""Detection: what happened per half second, what is normal, and when requests became late.

    aggregator, counts, steps            a fold over facts: sums per half second, steps as columns
    holders, gpus                        who holds blocks; what GPUs say
    requests, request_state              each request through its stages
    waits                                sequences that are queued or paused, and what for
    steady_rows                          streams that get one token in each step
    step_cost, host_time                 what a step costs; how long the engine's thread ran
    reference, learning, lengths         the baseline, and when it is learnt
    excess                               requests in flight beyond the baseline; CUSUM alarms
    late, blows, tail_thresholds         late tokens, and causes that come back
    window                               the stretch that is judged

It names no cause: that is `diagnosis.attribution`.
"""
