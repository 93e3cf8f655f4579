"""Steps computed one by one, operation by operation, on any device: the host knows the rows and moves them on."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from .columns import StepShape
from .draws import draw
from .kv_cache import KVCache
from .messages import PromptLogprobs
from .model.decoder import Model
from .ops.attention import AttentionBatch
from .ops.commit import LIVE, NO_TOKEN, commit_reference
from .ops.sampler import sample_packed
from .prompt_logprobs import asked_tokens, find_prompt_logprobs
from .step_rows import StepRows
from .steps import Computed, Row

# As many tokens and rows as there is room for at first.
_FEW = 64


class HostSteps:
    """`Steps` for a CPU, for what no graph was made for, and in tests the twin of what a GPU does by itself."""

    def __init__(self, model: Model, kv_cache: KVCache) -> None:
        self._model = model
        self._kv = kv_cache.layers
        self._block_size = kv_cache.pool.block_size
        self._table_width = -(-model.config.max_model_len // self._block_size)
        self._device = kv_cache.blocks.device
        self._rows = self._new_rows(_FEW, _FEW)
        self._begun: tuple[Seq[Row], StepShape] | None = None  # a step that is to be computed
        # Of the run, if there is one: where its rows were that are still live.
        self._run_rows: Seq[Row] = ()
        self._places = torch.empty(0, dtype=torch.int64)
        self._num_left = 0
        self._stopped = False

    def begin_step(self, rows: Seq[Row]) -> bool:
        """See Steps."""
        num_draws = sum(row.num_draws for row in rows)
        self._make_room(sum(row.count for row in rows), max(len(rows), num_draws))
        self._begun = rows, self._rows.fill(rows)
        self._num_left = 0
        return True

    def begin_run(self, rows: Seq[Row], num_steps: int) -> bool:
        """See Steps."""
        self._make_room(len(rows), len(rows))
        self._rows.fill_run(rows)
        self._run_rows = rows
        self._places = torch.arange(len(rows))
        self._num_left = num_steps
        self._stopped = False
        return True

    def settle(self) -> None:
        """See Steps. A step is computed when it is waited for."""

    def wait(self) -> bool:
        """See Steps."""
        return True

    def wake(self) -> None:
        """See Steps. Nobody waits."""

    def next(self) -> Computed | None:
        """See Steps. A step is computed here."""
        if self._begun is not None:
            (rows, shape), self._begun = self._begun, None
            return self._step(rows, shape)
        return self._next_of_run()

    def _step(self, rows: Seq[Row], shape: StepShape) -> Computed:
        asked = asked_tokens(rows)
        found: Seq[PromptLogprobs] = ()
        if asked:
            logits, found = self._forward_prompts(rows, shape, asked)
        else:
            logits = self._forward(shape)
        if shape.num_draws == 0:
            self._wait()
            return Computed([], prompt_logprobs=found)
        if any(row.sequence.needs_host for row in rows):
            computed = draw(logits, self._rows.device.params[: shape.num_draws], rows)
            return dataclasses.replace(computed, prompt_logprobs=found)
        return Computed(self._draw(logits).tolist())

    def _next_of_run(self) -> Computed | None:
        num_live, num_left = len(self._places), self._num_left
        if self._stopped or num_live == 0 or num_left == 0:
            return None
        # Until the step is there: whatever fails ends the run.
        self._num_left = 0
        rows = self._rows.host.commit_rows(num_live)
        shape = StepShape(num_live, num_live, num_live, int(rows.context_lens.sum()))
        recorded = commit_reference(self._draw(self._forward(shape)), rows, self._block_size)
        tokens = torch.full((len(self._run_rows),), NO_TOKEN, dtype=torch.int32)
        tokens[self._places] = recorded
        live = rows.status == LIVE
        if not live.all():
            self._rows.keep(live)
            self._places = self._places[live]
        self._num_left = num_left - 1
        return Computed(tokens.tolist())

    def extend(self, num_steps: int) -> bool:
        """See Steps. After the last step the next position has been looked up in the tables as they were."""
        if self._stopped or self._num_left == 0:
            return False
        self._rows.fill_tables([self._run_rows[place] for place in self._places.tolist()])
        self._num_left += num_steps
        return True

    def stop(self) -> None:
        """See Steps. At once."""
        self._stopped = True

    def close(self) -> None:
        """See Steps. Nothing is on its way."""

    def _forward(self, shape: StepShape) -> Tensor:
        """The logits [D, V] of the first rows."""
        columns = self._upload(shape)
        return self._model.forward(*columns, self._rows.device.logit_rows[: shape.num_draws])

    def _forward_prompts(
        self, rows: Seq[Row], shape: StepShape, asked: list[int]
    ) -> tuple[Tensor, list[PromptLogprobs]]:
        """The same, and what is asked of prompts: of those tokens of the step."""
        columns, model = self._upload(shape), self._model
        wanted = torch.tensor(asked).to(self._device)
        states = model.states(*columns, torch.cat([wanted, self._rows.device.logit_rows[: shape.num_draws]]))
        found = list(find_prompt_logprobs(rows, states[: len(asked)], model.logits))
        return model.logits(states[len(asked) :]), found

    def _upload(self, shape: StepShape) -> tuple[Tensor, Tensor, Seq[tuple[Tensor, Tensor]], AttentionBatch]:
        """Hands the rows to the device; what a model takes of them."""
        rows = self._rows
        rows.upload(shape.num_rows)
        token_ids, positions = rows.device.token_ids[: shape.num_tokens], rows.device.positions[: shape.num_tokens]
        return token_ids, positions, self._kv, rows.attention(shape)

    def _wait(self) -> None:
        """Until what was launched is computed: its time is the step's, and a step that is reported is over."""
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    def _draw(self, logits: Tensor) -> Tensor:
        """The tokens int64 [D] of the first rows, on the host."""
        return sample_packed(logits, self._rows.device.params[: len(logits)]).cpu()

    def _make_room(self, num_tokens: int, num_rows: int) -> None:
        rows = self._rows
        if num_tokens > rows.max_tokens or num_rows > rows.max_rows:
            # Twice as many, so that it does not happen often.
            self._rows = self._new_rows(max(2 * num_tokens, rows.max_tokens), max(2 * num_rows, rows.max_rows))

    def _new_rows(self, max_tokens: int, max_rows: int) -> StepRows:
        return StepRows(max_tokens, max_rows, self._table_width, self._device)
