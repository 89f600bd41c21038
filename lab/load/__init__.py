"""The load generator: drives any OpenAI-compatible server over HTTP and measures in the client.

It knows no server from inside.

spec, parse          what a bench does; the command line's words for it
workload/            arrivals, lengths and prompts
run, sending, http, stream, server     sending requests and reading replies
accounting, aggregator, result         what counts, and the figures
sweep, report, plot, machine, errors   a sweep of loads; views of results
"""
