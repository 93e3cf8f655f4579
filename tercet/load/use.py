"""What part of what they have server and host use, by a sample; percent, None where nobody says. Pure."""

from __future__ import annotations

from .record import Sample, ServerSample


def kv_used(sample: Sample) -> float | None:
    """Of the KV blocks of all workers, those that requests hold."""
    server = sample.server
    return None if server is None else _of_blocks(server, server.kv_used)


def kv_filled(sample: Sample) -> float | None:
    """With those that are kept for prefixes."""
    server = sample.server
    return None if server is None else _of_blocks(server, server.kv_used + server.kv_cached)


def host_cpu(sample: Sample) -> float | None:
    """Of this host's processors."""
    return None if sample.host_cpu is None else 100 * sample.host_cpu


def gpus(sample: Sample) -> float | None:
    """Of the time of this host's GPUs, the mean over them."""
    known = [gpu.use for gpu in sample.gpus if gpu.use is not None]
    return 100 * sum(known) / len(known) if known else None


def _of_blocks(server: ServerSample, blocks: int) -> float | None:
    total = server.kv_used + server.kv_cached + server.kv_free
    return 100 * blocks / total if total else None
