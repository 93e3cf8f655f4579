"""How gRPC's core works in processes that are ours alone. To be imported before gRPC, for which importing is enough."""

import os

# It writes of every handshake that fails: whoever knocks could fill a log with it.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
# It reads sockets in the thread that waits for them, and does not hand that to others (docs/adr/0042).
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")
