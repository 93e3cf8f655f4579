import tercet.grpc_core  # noqa: F401 - before gRPC
