"""A fleet in virtual time: the production router, and engines with the production scheduler.

traffic        sessions: what clients ask, and when
link           how long a frame takes, and which reports are lost
engine         one engine: scheduler and loop, a device that costs time only, its reports
world          one event queue for all of them, with faults
invariants     what must hold, numbered
outcome        what became of the requests, and goodput
scenarios      fleets with faults, each a function of its seed
public_traces  recorded traces that others have published, as requests
recorded/      a fleet that a gateway recorded, simulated with changes
twins/         fleets with a known fault, as their gateway sees them
disaggregated/ pairs of engines of which one computes prompts and one decodes

An engine has an event only where it has something to do: a step ends, a command or a report is due.
"""
