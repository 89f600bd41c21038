"""How sensitive verdicts and root causes are to each number of the table.

    changes    a number a quarter larger or a fifth smaller, wherever it is in use
    shared     many diagnosers, each with another number changed, over one fold of facts
    roots      the same for root causes, over replays that are run once
    sweep      the twins and records that they judge, and what they say
    summary, result   how many answers differ, by number

`python -m benchmarks.diagnosis.sensitivity` runs it.
"""
