"""Other ways for the bytes of blocks than the connection itself.

mover          what writes from memory of one process into memory of another
nixl_mover     NIXL with UCX
region         memory of a connection that is written by a peer, or read for one
mover_frames   what two ends say of it over their connection
sender, receiver  the two ends of one connection
desk           all connections of one engine
"""
