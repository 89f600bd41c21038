"""Facts of a fleet.

sequence_records        sequences on engines of other machines
routing_records         engines of a fleet, and where requests were sent
kv_transfer_records     KV blocks that go from one engine to another
known_fleet             those of a fleet that its gateway knows now
"""
