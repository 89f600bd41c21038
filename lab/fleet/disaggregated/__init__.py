"""Prefill and decode apart, in virtual time: pairs of engines with the production scheduler, loop
and transfer protocol, a link that loses, delays, repeats, flips and stalls, and engines that die or
freeze in every state of the protocol.

events       one queue of events for all engines
network      the link model: messages, and writes that land by themselves
node         one engine with both drivers, in its own clock
pair         two real engines in one process, over a transport
scenario     what a world depends on, drawn from a seed
world        runs one scenario
invariants   what must hold, numbered

`python -m benchmarks.disaggregated.simulated --count 10000` runs many.
"""
