"""Root cause by differential replay: the scheduler run again with one difference removed.

    root, question, counterfactual   why a window is slower than its reference
    interventions, limits, adapters, prefixes, slowness   what can be removed, where they differ
    whatif, outcomes, capacity       a journal replayed with other limits; how many users fit
    whatif_fleet, whatif_vllm        the same for a fleet, and for an attached vLLM
    thresholds                       every number that decides a root cause

It reads journals only, and runs outside of the gateway's event loop.
"""
