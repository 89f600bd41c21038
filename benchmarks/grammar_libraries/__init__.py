"""llguidance beside xgrammar over the JSON-Schema test suite: see `__main__`."""
