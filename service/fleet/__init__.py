"""More than one engine.

transfer    KV blocks from the engine that computes a prompt to the one that decodes it
"""
