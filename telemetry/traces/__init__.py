"""Traces: the spans of a timeline, tail sampling, and delivery over OTLP.

Reads timelines; measures nothing. No span carries a prompt, an output or a token id.

    sampling                                      which traces are kept
    spans, span_attributes, stall_spans           a timeline as a tree of spans
    remote_spans                                  the time at an engine node
    tool_spans                                    calls of functions
    limit_events, autopilot_events                changes of limits, and decisions of the autopilot,
                                                  as events of spans
    link_targets                                  links between traces
    otlp, export_queue                            the exporter's thread, and what it has to deliver
    otlp_delivery, otlp_config                    retries, settings
    otlp_exporters, otlp_http, otlp_grpc          one attempt of the official exporter
    tracing_view                                  counters of all this
"""
