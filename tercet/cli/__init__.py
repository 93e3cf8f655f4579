"""The command line. Each file holds one command; commands import what they need when they run, so help is instant."""

import os

# Before gRPC is imported, which writes of every handshake that fails: whoever knocks could fill a log with it.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

from tercet.cli.root import main

__all__ = ["main"]
