"""Drills on an attached vLLM: causes put in from outside, and who names them.

Mechanisms, phases, clients, labels and the form of the results are those of `lab.drills` and
`benchmarks.diagnosis`, so that their scores and their baseline classifiers work on these episodes.
"""
