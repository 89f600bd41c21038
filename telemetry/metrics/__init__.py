"""Metrics: the catalog, the values of its families, and the formats that leave the process.

Reads folds and counters; measures nothing itself.

    catalog, metric                             every metric as data
    families, gen_ai, vllm_names,
    connections, ingest_counts, exemplars       the values
    harm_metrics, machine_metrics,
    tracing_metrics                             values of harm, of the machine and of tracing
    clock_metrics, kv_metrics                   values of a fleet's clocks and of its KV transfers
    prometheus, prometheus_protobuf,
    negotiation, exposition                     the answer to a scrape
    otlp_metrics, ucum, otlp_push               OTLP messages, their units, and the thread that
                                                sends them
    metrics_doc                                 the reference page
"""
