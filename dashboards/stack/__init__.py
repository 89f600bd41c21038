"""A stack to deploy: phasescope with Jaeger, Prometheus, Alertmanager and Grafana.

All files are written by hand but `kubernetes/prometheusrule.yaml`, which is the rules of
`dashboards/prometheus` in the form that the Prometheus operator takes: `python -m dashboards.stack`
writes it.
"""
