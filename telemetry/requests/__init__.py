"""Folds facts into timelines: each request's phases, tokens and account.

The one definition of TTFT, ITL, TPOT, E2E and of each phase. No histograms, metrics or spans.

    phases                       the definitions: timelines, spans of phases, measures
    phase_fold, sequence_fold    facts to timelines and measurements
    account, ledger_guard        the types of the exact ledger, and the call to what builds it
    classes, slo_policy          workload classes and SLO classes
    timelines, timings           a timeline as JSON; the timings in a response
"""
