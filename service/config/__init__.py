"""Settings: each defined once, checked once, frozen afterwards.

- `setting`: what a setting is (flag, type, bounds, unit, help) and how its values are read.
- `engine_settings`, `gateway_settings`, `http_settings`, `telemetry_settings`, `adapter_settings`,
  `attach_settings`, `console_settings`, `fleet_settings`, `model_ref`: the frozen structs that hold
  the settings. A field of a struct is the definition of its setting.
- `sizes`: sizes in bytes, as people write them.
- `settings`: `ServeConfig`, the whole, and all names that other packages import.
- `tree`: all settings by key, and the one place where structs are built from values.
- `config_file`, `hardware`, `resolve`: where a value comes from, and which one counts.
- `tenant_keys`: the file of API keys.

Nothing here imports torch, or a library that takes long to import: `phasescope serve` reads its
settings before it starts the engine process.
"""
