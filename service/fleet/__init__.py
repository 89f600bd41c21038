"""More than one engine.

routing/     which engine a request is sent to; pure
transfer/    KV blocks from the engine that computes a prompt to the one that decodes it
"""
