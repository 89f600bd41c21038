"""Facts of a fleet.

routing_records     engines of a fleet, and where requests were sent
"""
