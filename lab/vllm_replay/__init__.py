"""Replay of an attached vLLM: vLLM's own scheduler class over a recorded run, without a model.

protocol                    the messages between the replay and the process of vLLM's scheduler
worker, stand_in            that process: vLLM's scheduler in vLLM's Python; nothing else imports it
scheduler_process           starts it
settings                    vLLM's limits, as recorded and as changed
recording                   a recorded run as calls of a scheduler, in order
replay_exact, decisions     with recorded durations: are the decisions the same, and where not, why
replay_modelled             with fitted durations and changed settings (what-if)
facts_of_replay             the facts of that, as an adapter in vLLM's process would write them

Only the worker and `stand_in` need vLLM.
"""
