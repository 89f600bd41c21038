"""How often the diagnosis of a fleet is right, on simulated fleets with known faults.

twins      what is said of one twin
scoring    rows and scores of many
__main__   `run`, `write`, `show`
"""
