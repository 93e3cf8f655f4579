"""The command line. Each file holds one command; commands import what they need when they run, so help is instant."""

import tercet.grpc_core  # noqa: F401 - before gRPC
from tercet.cli.root import main

__all__ = ["main"]
