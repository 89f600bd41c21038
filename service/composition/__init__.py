"""The composition root: builds a server out of all other packages.

Only `service.cli` may import it.

- `startup`: binds the port and starts the engine process, before heavy imports.
- `early_signals`: SIGTERM before a server is ready removes what it has made.
- `serving`: the gateway's event loop from start to end.
- `clients`: what serves clients: in the main process, or in several gateway processes beside it.
- `logs`: log lines as text or JSON.
- `telemetry`, `telemetry_wiring`: folds, listeners and threads of telemetry; `metrics_wiring`,
  `tracing_wiring`, `recording`: what exports metrics, what exports spans, the flight recorder.
- `root_cause_wiring`, `root_cause_worker`: root cause by replay, in a child process, which
  `replay_child` runs; `worker_failures`: what can fail in it.
- `report_wiring`, `report_worker`, `thread_stacks`: a folder for each incident, with report, stacks
  and dump.
- `node`, `fleet`: an engine behind a network, and a gateway to many of them.
- `attached`: the sidecar of an engine that others wrote, and the command beside it.
- `autopilot_wiring`, `autopilot_worker`: better limits by replay, proposed or set.
- `console`: the web console, as a child process of the server.
"""
