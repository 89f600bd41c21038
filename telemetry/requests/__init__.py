"""Folds facts into timelines: each request's phases, tokens and account.

The one definition of TTFT, ITL, TPOT, E2E and of each phase. No histograms, metrics or spans.

    phases                       the definitions: timelines, spans of phases, measures
    phase_fold, sequence_fold    facts to timelines and measurements
    live_request, live_sequence  what these folds keep of a live request and of its sequences
    borders, tiling              the borders of phases, and the cut of a request into them
    queue_heads                  the head of the queue over time, for waits of queued sequences
    engine_span                  when a request was in the engine, and what is not observed
    kv_accounts, split_regret    waits while another engine computed the prompt, and regret of that
    assumed_end                  an end for a request whose own is not there
    request_list                 the last ended requests as one line each
    account, ledger_guard        the types of the exact ledger, and the call to what builds it
    classes, slo_policy          workload classes and SLO classes
    timelines, timings           a timeline as JSON; the timings in a response
"""
