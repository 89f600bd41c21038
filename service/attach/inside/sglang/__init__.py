"""Observes SGLang: its scheduler process, and the process of its HTTP server.

plugin     the entry point in the group `sglang.srt.plugins`, and which process this is
seams      what is hooked and read, with the versions that the contract tests know
core       the hooks of the scheduler, which call the observer
observer   makes facts of what the scheduler did
sequences  the live sequences, and the facts about each
live       a live sequence, a step in flight, and their rows
steps      the record of a step
waits      why a live sequence has no row in a step
ends       why a sequence ended
start      the fact of the engine's start
front      the hooks of the HTTP server
"""
