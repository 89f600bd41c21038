"""Root cause by differential replay: the scheduler run again with one difference removed.

    root, question, counterfactual   why a window is slower than its reference
    interventions, limits, adapters, prefixes, slowness   what can be removed, where they differ
    whatif, outcomes, capacity       a journal replayed with other limits; how many users fit

It reads journals only, and runs outside of the gateway's event loop.
"""
