"""Traces: the context that travels with a request, the spans of those that are sampled, their way to a collector."""
