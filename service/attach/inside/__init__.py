"""What runs in the processes of an attached engine.

It never raises into the engine, waits for nothing, and turns itself off, with a reason that the
sidecar gets, when it meets something that it does not know.

plugin       the entry point that vLLM calls in each of its processes
vllm_core    observes vLLM's engine core
front_end    observes the process that has the HTTP requests
middleware   sees the generation requests of a server
sglang       observes SGLang
versions     which versions of an engine were tested, and whether its methods are as known
guard        keeps errors of ours away from the engine
transport, outbox, link   facts to the sidecar: the queue, what waits, the socket
block_aliases   small numbers that stand for hashes of KV blocks
"""
