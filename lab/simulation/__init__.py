"""The production scheduler and loop in virtual time, on a simulated device.

scenarios, workload, faults, settings     what a simulated run does
world, virtual_engine, sim_executor, plan_load     the engine and its device
invariants     what must hold after each step

It draws from seeded generators and reads no clock; a run is a function of its scenario.
"""
