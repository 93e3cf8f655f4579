"""Texts that keep to grammars on a GPU: beside others in captured steps they are what they are alone."""

from __future__ import annotations

import json
import queue

import pytest
import torch

from tercet.grammar.grammar import Grammar, Syntax
from tests.worker.cuda import needs_cuda
from tests.worker.grammar_process import END, LocalGrammars
from tests.worker.recall_model import VOCAB_SIZE
from tests.worker.stepped_executor import ended_of, tokens_of
from tests.worker.test_executor_grammars import REGEXES, SCHEMAS, check
from worker.executor import Executor
from worker.graph_steps import capture_steps
from worker.host_steps import HostSteps
from worker.kv_cache import KVCache
from worker.messages import Attach, Chunk, Detach, Event, NewSequence, Plan, Sampling, Structure
from worker.model.config import ModelConfig
from worker.model.decoder import Model
from worker.steps import Steps
from worker.weights.loader import random_model

pytestmark = needs_cuda

CUDA = torch.device("cuda")
CONFIG = ModelConfig(
    family="llama", vocab_size=VOCAB_SIZE, hidden_size=128, intermediate_size=192, num_layers=2, num_heads=4,
    num_kv_heads=2, head_dim=64, rms_norm_eps=1e-5, max_position=512, max_model_len=512,
)  # fmt: skip
PROMPT = (3, 1, 4, 1, 5)
GRAMMARS = [
    *(Grammar(Syntax.JSON_SCHEMA, json.dumps(each)) for each in SCHEMAS),
    *(Grammar(Syntax.REGEX, each) for each in REGEXES),
    Grammar(Syntax.EBNF, 'root ::= "a" root "b" | "c"'),
]


@pytest.fixture(scope="module")
def model() -> Model:
    return random_model(CONFIG, torch.float32, CUDA, seed=0)


def specs() -> list[NewSequence]:
    kept = [
        Sampling(1.0, seed=number, structure=Structure(grammar, len(PROMPT), (END,)))
        for number, grammar in enumerate(GRAMMARS)
    ]
    others = [Sampling(1.0, seed=100 + number) for number in range(len(GRAMMARS))]
    return [
        NewSequence(key, (*PROMPT[:-1], key % 90), len(PROMPT) + 60, frozenset({END}), sampling)
        for key, sampling in enumerate([*kept, *others])
    ]


def run(model: Model, kv_cache: KVCache, steps: Steps, wanted: list[NewSequence]) -> list[Event]:
    """Every sequence to its end, all together."""
    executor = Executor(steps, kv_cache, grammars=LocalGrammars(), check_every_step=True)
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    seen: list[Event] = []
    executor.start()
    try:
        executor.submit(Attach(events.put))
        for spec in wanted:
            executor.submit(spec)
        plan_seq = 0
        while len(ended_of(seen)) < len(wanted):
            # A sequence whose mask is late sits out: whoever is left over is planned again.
            left = [spec for spec in wanted if spec.sequence_id not in ended_of(seen)]
            plan_seq += 1
            chunks = tuple(Chunk(spec.sequence_id, len(spec.token_ids)) for spec in left) if plan_seq == 1 else ()
            join = tuple(spec.sequence_id for spec in left) if plan_seq == 1 else ()
            executor.submit(Plan(plan_seq, 16, chunks, join, plan_seq - 1))
            while True:
                event = events.get(timeout=30)
                seen.append(event)
                if getattr(event, "plan_seq", 0) == plan_seq and type(event).__name__ == "PlanDone":
                    break
        executor.submit(Detach(events.put))
    finally:
        assert executor.stop()
    assert kv_cache.counts().used == 0
    return seen


def test_beside_others_as_alone(model: Model) -> None:
    kv_cache = KVCache(CONFIG, 128, 16, torch.float32, CUDA)
    together = run(model, kv_cache, capture_steps(model, kv_cache, 32, 128 * 16), specs())
    for spec in specs():
        key = spec.sequence_id
        alone = run(model, kv_cache, HostSteps(model, kv_cache), [spec])
        assert tokens_of(together, key) == tokens_of(alone, key)
        structure = spec.sampling.structure
        if structure is not None:
            check(structure.grammar, tokens_of(together, key), ended_of(together)[key])
