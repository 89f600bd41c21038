"""More than one engine.

routing/     which engine a request is sent to; pure
"""
