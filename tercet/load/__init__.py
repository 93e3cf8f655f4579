"""Load on a server of language models, and what became of each request, as a client sees it.

Knows no mesh from inside: what it measures may be any server.
"""
