"""The embedded model on a GPU in bfloat16, through executor and graphs, beside float32 on a CPU and transformers.

`pytest -s` prints where texts part and how far log-probabilities lie from each other.
"""

from __future__ import annotations

import queue
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import pytest
import torch
from torch import Tensor

from tercet.sections import MeshConfig, WorkerSettings
from tests.worker.cuda import needs_cuda
from tests.worker.models import PagedRunner, reference_logits
from tests.worker.smollm2 import COUNT, PROMPTS, SmolLM2
from worker import engine
from worker.executor import Executor
from worker.layout import plan_layout
from worker.messages import Attach, Chunk, Event, NewSequence, Plan, PlanDone, StepResult
from worker.model.decoder import Model
from worker.weights.loader import load_model

pytestmark = [pytest.mark.model, needs_cuda]
COMPANIONS = 255
GPU = torch.device("cuda")


def show(line: str) -> None:
    """A figure for who asked for it with -s."""
    sys.stdout.write(f"{line}\n")


def generate(executor: Executor, prompts: Mapping[int, Sequence[int]], count: int) -> dict[int, list[int]]:
    """`count` greedy tokens after each prompt, all in one batch, on a started executor."""
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    executor.submit(Attach(events.put))
    for index, prompt in prompts.items():
        executor.submit(NewSequence(index, tuple(prompt), len(prompt) + count))
    executor.submit(Plan(1, 1, tuple(Chunk(i, len(prompt)) for i, prompt in prompts.items()), tuple(prompts)))
    executor.submit(Plan(2, count, (), ()))
    tokens: dict[int, list[int]] = {index: [] for index in prompts}
    while not (isinstance(event := events.get(timeout=60), PlanDone) and event.plan_seq == 2):
        if isinstance(event, StepResult):
            assert all(ended.failure is None for ended in event.ended)
            for index, token in zip(event.sequence_ids, event.token_ids, strict=True):
                tokens[index].append(token)
    return tokens


class OnGpu:
    """What the tests compare, made once."""

    def __init__(self, smollm2: SmolLM2) -> None:
        self.cpu = smollm2
        settings = WorkerSettings(device="cuda", kv_cache_memory=2 << 30, max_num_seqs=256, max_num_batched_tokens=8192)
        layout = plan_layout(MeshConfig(worker=settings), smollm2.source)
        self.executor, _ = engine.build_executor(layout, smollm2.source, settings, lambda line: None)
        self.executor.start()

    @cached_property
    def model(self) -> Model:
        """Ours in bfloat16."""
        return load_model(self.cpu.source, torch.bfloat16, GPU)

    @cached_property
    def texts(self) -> dict[int, list[int]]:
        """Prompts and what float32 says after them: what all log-probabilities are taken over."""
        return {index: prompt + self.cpu.greedy[index] for index, prompt in self.cpu.prompts.items()}

    @cached_property
    def ours(self) -> dict[int, Tensor]:
        """Log-probabilities [T, V] of our model."""
        logits = PagedRunner(self.model, block_size=64, num_blocks=64).prefill(self.texts, chunk=256)
        return {index: one.float().log_softmax(-1).cpu() for index, one in logits.items()}

    @cached_property
    def exact(self) -> dict[int, Tensor]:
        """Logits [T, V] of transformers in float32 on the CPU."""
        return {index: reference_logits(self.cpu.reference, text) for index, text in self.texts.items()}

    @cached_property
    def theirs(self) -> dict[int, Tensor]:
        """Logits [T, V] of transformers in bfloat16 on the GPU."""
        reference: Any = self.cpu.reference
        weights = {name: tensor.clone() for name, tensor in reference.state_dict().items()}
        rounded = type(reference)(reference.config).to(torch.float32)
        rounded.load_state_dict(weights)
        rounded = rounded.to(torch.bfloat16).to(GPU).eval()
        with torch.no_grad():
            return {
                i: rounded(torch.tensor([text], device=GPU)).logits[0].float().cpu() for i, text in self.texts.items()
            }


@pytest.fixture(scope="module")
def on_gpu(smollm2: SmolLM2) -> Any:
    made = OnGpu(smollm2)
    yield made
    made.executor.stop()


def test_greedy_text_parts_from_float32_only_where_bfloat16_cannot_tell(on_gpu: OnGpu) -> None:
    said = generate(on_gpu.executor, on_gpu.cpu.prompts, COUNT)
    for index, want in on_gpu.cpu.greedy.items():
        got = said[index]
        assert len(got) == COUNT
        parted = next((at for at, (a, b) in enumerate(zip(got, want, strict=True)) if a != b), None)
        if parted is None:
            show(f"{PROMPTS[index][:40]!r}: all {COUNT} tokens equal")
            continue
        at = len(on_gpu.cpu.prompts[index]) + parted - 1
        exact = on_gpu.exact[index][at]
        first, second = exact.topk(2).values.tolist()
        rounding = float((on_gpu.theirs[index][at] - exact).abs().max())
        show(
            f"{PROMPTS[index][:40]!r}: parts after {parted} tokens, where float32 has {first:.4f} and {second:.4f}, "
            f"{first - second:.4f} apart; bfloat16 moves logits by up to {rounding:.4f} there"
        )
        assert got[parted] in exact.topk(4).indices.tolist()
        assert first - float(exact[got[parted]]) <= 2 * rounding


def test_log_probabilities_lie_no_farther_from_float32_than_those_of_transformers(on_gpu: OnGpu) -> None:
    ours_to_theirs, theirs_to_exact, ours_to_exact = [], [], []
    for index, logits in on_gpu.exact.items():
        exact, theirs = logits.log_softmax(-1), on_gpu.theirs[index].log_softmax(-1)
        likely = exact.topk(100, dim=-1).indices
        ours = on_gpu.ours[index]
        ours_to_theirs.append((ours - theirs).gather(1, likely).abs())
        theirs_to_exact.append((theirs - exact).gather(1, likely).abs())
        ours_to_exact.append((ours - exact).gather(1, likely).abs())
    means = [float(torch.cat(one).mean()) for one in (ours_to_theirs, theirs_to_exact, ours_to_exact)]
    show(
        "mean distance of log-probabilities, 100 likeliest tokens: ours to transformers bfloat16 "
        "{:.5f}, transformers bfloat16 to float32 {:.5f}, ours to float32 {:.5f}".format(*means)
    )
    assert means[2] <= means[1]
    # Two roundings of the same numbers lie farther from each other than each from the numbers; measured: 1.11.
    assert means[0] <= 1.15 * means[1]


def test_a_request_among_others_says_what_it_says_alone(on_gpu: OnGpu) -> None:
    """Attention and sampling do not depend on the batch; cuBLAS does, so texts may part where bfloat16 cannot tell."""
    prompts = on_gpu.cpu.prompts
    alone = {index: generate(on_gpu.executor, {index: prompt}, COUNT)[index] for index, prompt in prompts.items()}
    crowd = {1000 + i: prompts[i % len(prompts)][: 3 + i % 7] for i in range(COMPANIONS)}
    for index, prompt in list(prompts.items())[:3]:
        among = generate(on_gpu.executor, {index: prompt, **crowd}, COUNT)[index]
        parted = next((at for at, (a, b) in enumerate(zip(among, alone[index], strict=True)) if a != b), None)
        if parted is not None:
            text = prompt + alone[index]
            exact = reference_logits(on_gpu.cpu.reference, text[: len(prompt) + parted])[-1]
            first, second = exact.topk(2).values.tolist()
            show(
                f"{PROMPTS[index][:40]!r}: among {COMPANIONS} others parts after {parted} tokens, "
                f"{first - second:.4f} apart in float32"
            )
            assert abs(float(exact[among[parted]] - exact[alone[index][parted]])) < 0.25
        else:
            show(f"{PROMPTS[index][:40]!r}: the same {COUNT} tokens among {COMPANIONS} others")
