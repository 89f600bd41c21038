"""Facts, and the queues that writers put them in. Needs only the standard library and msgspec.

base, reasons                                  shared small types, closed enums
engine_records, records, host_records, stages  the facts
autopilot_records                              decisions about limits
fleet/                                         facts of a fleet: routing
limits                                         limits that change at run time, by name
version                                        of phasescope, as installed
clock                                          the only place that reads time
credentials                                    keys and logins: what of them may be sent and shown
recorder                                       lanes, the queues that facts are written to
"""
