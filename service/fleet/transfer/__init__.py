"""KV blocks from the engine that computes a prompt (prefill side) to the one that decodes it.

messages, actions       what the sides say, and what they want done
decode_side             pure: reserves, asks, verifies, admits
prefill_side            pure: computes, sends chunk by chunk, seals
split, remote_parts     pure: which way is cheaper; where the time of the prefill side goes
digests, epochs, seals  what finds a flipped bit; numbers that are used once; what a seal may say
sending                 what the prefill side knows of one transfer
decode_driver, prefill_driver   carry out what a side wants, beside the loop of an engine
transport               what moves bytes and messages; in_process and tcp do
tcp_addresses, tcp_frames, tcp_session   of tcp: where peers are, its frames and the proof that
                        begins a connection, the two threads of a connection
movers                  what moves bytes of blocks beside a connection of tcp: NIXL
open_memory             which block may be written by whom, however it came
"""
