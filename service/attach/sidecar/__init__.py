"""The receiving end of `service.attach.wire`: connections, and the join of their facts.

socket_file    the unix socket: private to the user, a stale one is replaced
listener       connections, their bounds, and what is counted of them
streams        what one connection has said of itself
hub            facts of all connections, in order, joined and renumbered
front_requests the live requests of all front ends, each under an id that no other one has
joining        the engine's names of sequences meet the requests of the front end
core_requests  requests made from the core's facts alone, where no front end is observed
renumbering    numbers of sequences that are unique over one engine after another
watch          an engine that is gone, or does not respond
attached       all of it as telemetry and the routes see it
"""
