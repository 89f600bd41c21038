"""Replay: the production scheduler over recorded arrivals.

It reads facts and writes facts; who is to blame is the business of diagnosis.

recorded, recorded_drafts       a recorded run as the input of a replay
recorded_commands               commands of the run, found from the facts that they left
recorded_adapters, recorded_kv  its adapters, and KV that came from other engines
replay_exact                    with recorded durations: decisions must come out the same
replay_modelled, retimed        with fitted durations and changed settings (what-if)
modelled_device, iteration_cost, noise, stolen      the fitted device and the machine's noise
engine_costs                    which runs of a journal are fitted together
closed_loop                     a closed loop of users on the fitted device
"""
