"""Dashboards: views of facts, and nothing else.

    monitor        the live terminal monitor (rich), over /debug/snapshot and /debug/diagnosis
    fleet          several servers at once, in the monitor and in diagnose
    console        the web console (NiceGUI), over the same routes and the flight recorder
    timeline       a journal as a trace file for ui.perfetto.dev
    report         an incident as one HTML file
    export         requests, steps and ledgers as Parquet
    agents         a read-only server of the Model Context Protocol
    explain        one request as a waterfall, with its ledger and its late tokens
    source         where facts come from: a dump, a journal folder, a running server
    terminal       what is printed there, and `printable`: words of others steer no terminal
    extras         packages that only some views need
    prometheus     scrape configuration and alerting rules
    grafana        Grafana boards, written from the metrics catalog
    stack          a stack to deploy: phasescope, Jaeger, Prometheus, Alertmanager and Grafana

A view draws what folds have computed; it computes no metric. It runs on any machine and imports
nothing of the service.
"""
