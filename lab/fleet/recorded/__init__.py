"""A fleet that a gateway recorded, as the input of a simulation: what would have been otherwise.

The gateway's facts say who came when, how long prompts and outputs were, which prompts had prefixes
in common, and what engines said of themselves: limits, fitted costs, and how much slower than these
they were at each moment. Nothing of a text is needed, and none is there.

record      the facts of one gateway, read
texts       token ids with the same prefixes in common as those that were sent
change      what is to be different, as `name=value`
world       the fleet again, with the production router
apart       the fleet again, with prompts computed by engines of their own
requests    the gateway's facts of requests, shifted to the tokens that they follow
"""
