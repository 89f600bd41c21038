"""Live sequences and the state that belongs to them; decides nothing about who runs.

request, stopping    state of one sequence; when it is done
queue                waiting sequences and their order
sequence_table       live sequences, and the moves between waiting, running and ended
slot_pool            slots of the batch
prefix_blocks        a sequence's full blocks in the prefix cache and in the record
fact_log             facts and emissions that the loop has not taken yet
"""
