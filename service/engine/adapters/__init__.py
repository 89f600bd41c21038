"""Adapters in the pure core: which are known, which are placed, which sequences wait for one.

registry    what is known, what is placed, and whose memory is free
orders      what the device has to do
uses        who waits for one, and what launched steps compute with
desk        commands, sequences and decisions
"""
