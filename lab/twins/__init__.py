"""Virtual twins: simulated runs of a whole server with a known fault, as the facts it would record.

The scheduler is the production one; gateway, device, machine and clients are models in virtual
time. A twin writes facts only and knows nothing of diagnosis.

    registry, compounds     twins by name, with one fault and with two
    faint                   twins of faint faults, which a mean hardly shows
    chains                  causes that bring about another, with the chain as the truth
    gpus                    what NVML would say of GPUs that are not there
    fault, faults/, healthy     what goes wrong, and servers with nothing wrong
    traffic, simulated_run  requests and server settings, before they run
    twin, simulate          from faults to a twin; from a run to its facts
    gateway, clients, delivery, device, physics, losses, host     models of the parts
    shared_steps            which requests shared a step
"""
