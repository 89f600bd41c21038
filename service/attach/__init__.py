"""Attach to an engine that others wrote, such as vLLM or SGLang.

wire       the messages from an attached engine to the sidecar, and where its socket is
inside     runs in the processes of the engine: imports the standard library, msgspec, and the
           facts, and nothing else of ours
sidecar    a process of its own: receives the facts and joins those of several processes
"""
