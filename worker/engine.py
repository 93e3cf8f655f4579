"""Puts a worker's parts together: model, KV cache and executor, within a memory budget."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable

import structlog
import torch

from tercet.errors import StartupError
from tercet.grammar.process import GrammarProcess, Limits
from tercet.model_source import ModelSource
from tercet.sections import WorkerSettings

from . import _core
from .budget import Budget, Usage
from .device_turn import device_turn
from .executor import Executor
from .grammars import Grammars
from .graph_steps import capture_steps
from .host_steps import HostSteps
from .kv_cache import KVCache
from .layout import Layout
from .memory_profile import (
    CudaMemory,
    DeviceMemory,
    device_name,
    enough_memory,
    keep_within,
    measure,
    run_largest_steps,
)
from .messages import Attach, Chunk, Detach, Event, NewSequence, Plan, PlanDone, StepResult
from .model.decoder import Model
from .steps import Steps
from .swap_space import SwapSpace
from .weights.loader import load_model, random_model

log = structlog.get_logger()


def build_executor(
    layout: Layout,
    source: ModelSource,
    settings: WorkerSettings,
    progress: Callable[[str], None],
    on_death: Callable[[], None] = lambda: None,
) -> tuple[Executor, Layout]:
    """Loads the model and builds an executor that has not been started; on a GPU the layout is a measured one now.

    Raises StartupError.
    """
    if layout.device.type == "cpu":
        num_threads = settings.num_threads or len(os.sched_getaffinity(0))
        _core.set_num_threads(num_threads)
        # The kernels have their own threads; torch's would compete with them for the cores.
        torch.set_num_threads(1)
        return executor_for(_load(layout, source, progress), layout, settings, on_death, source), layout
    torch.cuda.set_device(layout.device)
    with device_turn(device_name(layout.device), progress):
        memory = CudaMemory(layout.device)
        with enough_memory("the weights"):
            model = _load(layout, source, progress)
        progress("measuring the memory of the largest steps")
        return build_within(memory, model, layout, settings, on_death, source)


def build_within(
    memory: DeviceMemory, model: Model, layout: Layout, settings: WorkerSettings,
    on_death: Callable[[], None] = lambda: None, source: ModelSource | None = None,
) -> tuple[Executor, Layout]:  # fmt: skip
    """An executor for a model that has just been loaded into `memory`, of which its KV cache takes what is left. It
    follows grammars if `source` has the model's files.

    Raises StartupError if that is too little.
    """
    with enough_memory("the largest steps"):
        layout = layout.measured(_measure(memory, model, layout, settings), settings)
    with enough_memory("the KV cache and captured steps"):
        kv_cache = _kv_cache(layout, layout.budget.num_blocks, settings)
        executor = _executor(model, kv_cache, layout, settings, on_death, source)
    keep_within(memory, layout.budget)
    # The proof, and what it used is at hand for the first large step.
    with enough_memory("the largest steps beside the KV cache"):
        run_largest_steps(
            model, kv_cache, settings.max_num_batched_tokens, settings.max_num_seqs, layout.budget.num_tokens
        )
    return executor, layout


def executor_for(
    model: Model, layout: Layout, settings: WorkerSettings, on_death: Callable[[], None] = lambda: None,
    source: ModelSource | None = None,
) -> Executor:  # fmt: skip
    """An executor for a model that is already in memory. It follows grammars if `source` has the model's files.

    Raises StartupError if the host refuses the swap space, torch.OutOfMemoryError if the device the rest.
    """
    kv_cache = _kv_cache(layout, layout.budget.num_blocks, settings)
    return _executor(model, kv_cache, layout, settings, on_death, source)


def _executor(
    model: Model, kv_cache: KVCache, layout: Layout, settings: WorkerSettings, on_death: Callable[[], None],
    source: ModelSource | None,
) -> Executor:  # fmt: skip
    swap_space = _swap_space(kv_cache, layout.budget)
    if layout.captures:
        steps: Steps = capture_steps(model, kv_cache, settings.max_num_seqs, layout.budget.num_tokens)
    else:
        steps = HostSteps(model, kv_cache)
    grammars = None if source is None else _grammars(source, layout.model.vocab_size, settings)
    return Executor(steps, kv_cache, swap_space, grammars=grammars, on_death=on_death)


def _grammars(source: ModelSource, vocab_size: int, settings: WorkerSettings) -> Grammars:
    limits = Limits(settings.grammar_memory, settings.grammar_seconds)
    return Grammars(lambda on_answer, on_loss: GrammarProcess((source, vocab_size), limits, on_answer, on_loss))


def _load(layout: Layout, source: ModelSource, progress: Callable[[str], None]) -> Model:
    if source.load_format == "dummy":
        log.warning("random_weights", setting="model.load_format")
        return random_model(layout.model, layout.dtype, layout.device, seed=0, quantization=layout.quantization)
    return load_model(source, layout.dtype, layout.device, progress, layout.model.max_model_len, layout.quantization)


def _measure(memory: DeviceMemory, model: Model, layout: Layout, settings: WorkerSettings) -> Usage:
    kv_cache = _kv_cache(layout, 1, settings)
    most, max_num_seqs = layout.most_cache_tokens, settings.max_num_seqs
    return measure(
        memory,
        lambda: run_largest_steps(model, kv_cache, settings.max_num_batched_tokens, max_num_seqs, most),
        (lambda: capture_steps(model, kv_cache, max_num_seqs, most)) if layout.captures else None,
    )


def _kv_cache(layout: Layout, num_blocks: int, settings: WorkerSettings) -> KVCache:
    return KVCache(
        layout.model, num_blocks, layout.budget.block_size, layout.kv_dtype, layout.device,
        settings.enable_prefix_caching,
    )  # fmt: skip


def _swap_space(kv_cache: KVCache, budget: Budget) -> SwapSpace:
    try:
        swap_space = SwapSpace(kv_cache, budget.num_swap_blocks)
    except RuntimeError as error:
        raise StartupError(f"worker.swap_space: the host refuses {budget.swap_bytes:,} bytes: {error}") from error
    swap_space.measure()
    return swap_space


def warm_up(executor: Executor, layout: Layout) -> None:
    """Runs a short prompt and a few tokens on a started executor, so that the first request finds everything loaded.

    Raises StartupError if that does not work: a worker that cannot compute must not say that it is ready.
    """
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    length = min(16, layout.model.max_model_len - 1)
    if length < 1:
        return
    executor.submit(Attach(events.put))
    executor.submit(NewSequence(0, (0,) * length, min(length + 3, layout.model.max_model_len)))
    executor.submit(Plan(1, 4, (Chunk(0, length),), (0,)))
    try:
        while not isinstance(event := _next_event(executor, events), PlanDone):
            for ended in event.ended if isinstance(event, StepResult) else ():
                if ended.failure is not None:
                    raise StartupError(f"the model's first step failed: {ended.failure.message}; see the log above")
    finally:
        executor.submit(Detach(events.put))


def _next_event(executor: Executor, events: queue.SimpleQueue[Event]) -> Event:
    while True:
        try:
            return events.get(timeout=1.0)
        except queue.Empty:
            if not executor.alive:
                raise StartupError("the model's first step ended the executor; see the log above") from None
