"""The KV cache as the scheduler sees it: numbers of blocks, never their contents.

blocks          the block pool: which blocks are free, used or cached
prefix          the prefix cache: which block holds which text
held_prefixes   what the prefix cache came to hold and lost, for whoever sends requests here
cpu_offload     which evicted blocks are kept in CPU memory
block_aliases   numbers that stand for digests in the record
"""
