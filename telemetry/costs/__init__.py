"""What a step costs: one set of terms, one fit, and presets for each use.

Facts in, coefficients out. No scheduling and no charging to requests.

    step_load                the terms of a step
    cost_model               terms, presets and the fit
    step_cost, forward_cost  the running fits of the token budget and of the ledger
"""
