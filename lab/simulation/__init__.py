"""The production scheduler and loop in virtual time, on a simulated device.

scenarios, workload, faults, settings     what a simulated run does
world, virtual_engine, sim_executor       the engine and its device
sim_adapters   adapters in virtual time
watched        a simulated executor that says what it is given
invariants, slo_invariants   what must hold after each step, also of the latency targets
evidence       what the checks know of sequences, and how they say what is wrong
attached       the same run as an adapter in another engine would have written it
shifted_ends   recorded facts of requests, shifted with the tokens that they follow

It draws from seeded generators and reads no clock; a run is a function of its scenario.
"""
