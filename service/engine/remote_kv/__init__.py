"""KV of another engine in the pure core: blocks reserved for it, and blocks kept to be sent.

received    sequences that decode here what another engine has computed
sent        sequences whose prompt is computed here for another engine
"""
