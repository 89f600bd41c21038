"""Facts, and the queues that writers put them in. Needs only the standard library and msgspec.

base, reasons                                  shared small types, closed enums
engine_records, records, host_records, stages  the facts
autopilot_records                              decisions about limits
adapter_records, tool_records                  facts about adapters, and about calls of functions
engine_start, step_parts                       parts of the facts of an engine's start and of a step
fleet/                                         facts of a fleet: engines, routing, KV transfers
known_adapters                                 the facts of the adapters that an engine knows now
limits                                         limits that change at run time, by name
engine_flags                                   what other engines call these limits
traceparent                                    reads and makes trace and span ids (W3C)
framing                                        cuts a byte stream into messages
version                                        of phasescope, as installed
clock                                          the only place that reads time
credentials                                    keys and logins: what of them may be sent and shown
recorder                                       lanes, the queues that facts are written to
"""
