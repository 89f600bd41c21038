"""The load generator: drives any OpenAI-compatible server over HTTP and measures in the client.

It imports nothing of any server's internals.

spec, parse          what a bench does; how the command line describes it
workload/            arrivals, lengths and prompts
run, sending, http, stream, server     sending requests and reading replies
accounting, aggregator, result         which requests count, and the figures
sweep, report, plot, machine, errors   a sweep of loads; views of results
processes                              servers that a run starts, their ports and their end
"""
