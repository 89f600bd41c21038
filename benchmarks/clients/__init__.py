"""Clients, load generators and routers of others, each in an environment of its own, and their
figures beside ours."""
