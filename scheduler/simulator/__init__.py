"""The real core on a virtual clock between simulated gateways and workers: for tests and for capacity planning.

No torch, no gRPC, no real time: the same seed gives the same run.
"""
