"""Which engine a request is sent to. Pure: what is known goes in, a choice and a fact come out.

No sockets, no clock, no logging: callers pass the time in. The same code runs in a gateway, in the
simulated fleet (`lab.fleet`), and again over recorded facts (`decision_replay`).

    router                    what callers use: joined, report, choose, sent, ended, left
    settings, request         what is set, and what is asked
    router_state              what a router knows of its engines and their prefixes
    reports                   which reports can be used
    anchors                   prefixes of a prompt as keyed hashes
    engine_view               what the router knows of one engine, corrected by what it sent itself
    prediction                first token, finish and harm of a request there
    load_order                engines by load
    prefix_index, prefix_runs engines by the prefixes that they hold
    ring                      consistent hashing
    policies                  the three ways to choose
    prefill_choice            which engine computes a prompt for the one that goes on with it
    decision_replay           the same choices from the facts, and other policies on them
"""
