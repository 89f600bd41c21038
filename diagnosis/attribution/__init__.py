"""Attribution: requests' time beyond the baseline, charged to causes.

    blame        all stages together; the charges add up to the excess
    engine_time  the engine's time: masks, sampling, prompts, decodes
    slow_steps   slow steps and pauses, and their cause by what the host says
    demand       more requests, longer ones, and missed prefix hits, beyond chance
    batches      so many requests at once that those behind them had to wait
    queue        how long who comes now will wait, and whether that is in time
    late_tokens, late_waits   the cause of one late token
    first_links  causes of causes: harm moves to the first link that is proven
    device_evidence  what GPUs and ranks measured of slow steps
    charges      amounts by cause
    chance       what chance can do: tails of counts, standard errors of means
    thresholds, chain_thresholds, device_thresholds   every number that decides a charge

It judges nothing: what is large enough to be said is for `diagnosis.verdicts`.
"""
