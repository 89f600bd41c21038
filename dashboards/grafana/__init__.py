"""Grafana boards, written from the metrics catalog.

`boards/` says what is on each board, in terms of the catalog's metrics (`queries.py`). `build.py`
turns that into Grafana's JSON with the types of the Grafana Foundation SDK. The JSON is committed
beside this file; `python -m dashboards.grafana` writes it again, and a test says when it is stale.
"""
