"""How sensitive verdicts and root causes are to each number of the table.

    changes    a number a quarter larger or a fifth smaller, wherever it is in use
    shared     many diagnosers, each with another number changed, over one fold of facts
    sweep      the twins and records that they diagnose, and what they say
    summary    how many verdicts differ, by number

`python -m benchmarks.diagnosis.sensitivity` runs it.
"""
