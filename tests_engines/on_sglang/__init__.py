"""The adapter for SGLang against SGLang itself: the wheels of its two newest releases.

    python -m pytest tests_engines/on_sglang [-m "not live"]

test_seams   what is hooked and read is there: from the source alone, and by importing it
test_live    a server on the CPU, with every kind of request, and what the facts say of it
"""
