"""The engine process: what surrounds the engine loop, and its protocol with the gateway.

- `engine_main`: loads the executor and runs the loop; only `service.cli` imports it.
- `frames`, `link`, `gateway_connection`: the messages, and the engine's end of the socket.
- `many_gateways`: the engine's ends with several gateway processes.
- `heartbeat`: the shared page by which the gateway watches the engine.
- `live_sequences`, `profiling`: records of live sequences, and kernel profiles.
- `engine_limits`: the limits of the scheduler, from the settings and what was loaded.
- `adapter_store`: reads adapters in a thread and places them on the device.
- `grammars`: has the grammars of live sequences compiled.
- `kv_exchange`: sends and gets KV blocks where other engines compute the prompts.
- `prefix_news`: tells a node what the prefix cache of its engine holds.
- `linear_algebra`: the threads of the library that multiplies numpy's matrices.
- `allocator`: settings of malloc, for the gateway process.

`frames` and `heartbeat` are imported by the gateway too, so they must not import torch.
"""
