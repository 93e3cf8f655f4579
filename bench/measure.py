"""The figures of a preset's work, from anything that can run requests: an executor, a mesh, a peer's engine.

Imports nothing but the standard library, so that it runs in a peer's environment too.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from bench.workload import Request, Work, mixed, prompts

# Runs requests that all arrive at once; returns seconds until the last token, and tokens generated.
Run = Callable[[Sequence[Request]], tuple[float, int]]


def measure(run: Run, work: Work, vocab_size: int) -> dict[str, Any]:
    """All figures of the work; each is printed as it is known."""
    rng = random.Random(1)

    def seconds(count: int, length: int, max_tokens: int) -> float:
        return run([Request(prompt, max_tokens) for prompt in prompts(count, length, vocab_size, rng)])[0]

    seconds(4, 32, 8)  # what is loaded or compiled at first use
    few, many = work.outputs
    decode = {}
    for context, batches in work.decode:
        for batch in batches:
            # The difference of two lengths leaves the prefill out; the better of two runs leaves noise out.
            short = min(seconds(batch, context, few) for _ in range(2))
            long = min(seconds(batch, context, many) for _ in range(2))
            step = (long - short) / (many - few)
            decode[f"ctx{context}_b{batch}"] = {"step_ms": step * 1e3, "tok_s": batch / step}
            print(f"decode context {context} batch {batch}: {step * 1e3:.2f} ms, {batch / step:.0f} tok/s", flush=True)
    count, length = work.prefill
    prefill = count * length / min(seconds(count, length, 1) for _ in range(3))
    print(f"prefill {count} x {length}: {prefill:.0f} tok/s", flush=True)
    first = median(seconds(1, work.first_token_prompt, 1) for _ in range(9)) * 1e3
    print(f"first token of a {work.first_token_prompt}-token prompt: {first:.1f} ms", flush=True)
    requests = mixed(work, vocab_size)
    took, generated = run(requests)
    print(f"mix of {len(requests)}: {len(requests) / took:.2f} req/s, {generated / took:.0f} tok/s", flush=True)
    return {
        "decode": decode,
        "prefill_tok_s": prefill,
        "ttft_1req_ms": first,
        "mixed": {
            "requests": len(requests),
            "seconds": took,
            "req_s": len(requests) / took,
            "out_tok_s": generated / took,
            "in_tokens": sum(len(request.prompt) for request in requests),
            "out_tokens": generated,
        },
    }
