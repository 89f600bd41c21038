"""Drills: real faults in a running server, injected from outside, with sealed labels.

A drill knows its own fault and reads the server's verdict over HTTP; it imports no diagnosis.

spec, registry, mechanism, mechanisms/     what a drill does
episode, stage, servers, traffic, client   an episode: servers, traffic and its clients
injection, outside, helpers, hooks/        how a fault is put into processes
watch, pace, commands, collector, capacity     measurements beside it
calibration/, harm                         how hard a fault hits clients, and the intensity for that
outcome/                                   labels, conditions of the machine, results
"""
