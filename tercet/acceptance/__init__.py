"""Whether a server does what was agreed: a contract, line by line, each passed or failed with its figure.

Knows no mesh from inside: what a server does not tell is not measured.
"""
