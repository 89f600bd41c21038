"""A read-only server of the Model Context Protocol over the debug routes, for agents.

    reader     asks the server; every error has a kind
    record     incidents and requests, from the server's journal
    tools      the tools: names, arguments and answers, without the protocol
    serving    the protocol, by the official SDK (needs mcp)

No tool changes anything: each is a GET.
"""
