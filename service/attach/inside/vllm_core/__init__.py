"""Observes vLLM's engine core process.

scheduler_class   the class of the scheduler that vLLM gets, and where it is put in
hooks             the methods that are observed
observer          facts of what they did
live, steps       sequences and steps; waits, ends, grammars, start: their parts
"""
