"""One generation request, from its headers to its last byte."""
