"""The embedded model, read from its GGUF file by us and by transformers, and ten texts to continue."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
import transformers
from gguf import GGUFReader, TokenType
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from tercet.model_source import ModelSource, resolve_model
from tests.worker.models import PagedRunner, reference_logits
from worker.model.decoder import Model
from worker.weights.loader import load_model

COUNT = 64
# From less than a block of tokens to several: a prompt hits the prefix cache from its second block on.
PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a small village by the sea, there lived an old clockmaker who had never once been late.",
    "def fibonacci(n):\n    ",
    "#include <vector>\nint main() {\n    std::vector<int> values = {3, 1, 2};\n    ",
    "<|im_start|>user\nWhat is the capital of France, and of Spain?<|im_end|>\n<|im_start|>assistant\n",
    "中国的首都是北京,法国的首都是",
    "🎉🎂 Happy birthday! 🎈🎁 Let us eat cake 🍰 and",
    "Der schnelle braune Fuchs springt über",
    '{"name": "Ada", "born": 1815, "languages": [',
    "1, 1, 2, 3, 5, 8, 13, 21, " * 3,
)


class SmolLM2:
    """Each part is made when it is first asked for, and kept: loading and running the reference takes seconds."""

    @cached_property
    def source(self) -> ModelSource:
        """Where the file is."""
        return resolve_model("embedded")

    @cached_property
    def reference(self) -> Any:
        """As published: HuggingFaceTB/SmolLM2-135M-Instruct. Weights by the GGUF reader of transformers itself."""
        config = transformers.LlamaConfig(
            vocab_size=49152,
            hidden_size=576,
            intermediate_size=1536,
            num_hidden_layers=30,
            num_attention_heads=9,
            num_key_value_heads=3,
            max_position_embeddings=8192,
            rms_norm_eps=1e-5,
            rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
            tie_word_embeddings=True,
        )
        model = transformers.LlamaForCausalLM(config).to(torch.float32).eval()
        weights = load_gguf_checkpoint(str(self.source.path), return_tensors=True, model_to_load=model)["tensors"]
        outcome = model.load_state_dict(weights, strict=False)
        assert (outcome.missing_keys, outcome.unexpected_keys) in (([], []), (["lm_head.weight"], []))
        return model

    @cached_property
    def prompts(self) -> dict[int, list[int]]:
        """Token ids of the prompts, by a byte-level BPE built from the file's own vocabulary."""
        fields = GGUFReader(self.source.path).fields
        tokens = fields["tokenizer.ggml.tokens"].contents()
        merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"].contents()]
        kinds = fields["tokenizer.ggml.token_type"].contents()
        tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.add_special_tokens(
            [token for token, kind in zip(tokens, kinds, strict=True) if kind == TokenType.CONTROL]
        )
        return {index: tokenizer.encode(prompt).ids for index, prompt in enumerate(PROMPTS)}

    @cached_property
    def model(self) -> Model:
        """Ours, in float32."""
        return load_model(self.source, torch.float32, torch.device("cpu"))

    @cached_property
    def greedy(self) -> dict[int, list[int]]:
        """What our model says, without an executor."""
        return PagedRunner(self.model, num_blocks=160).greedy(self.prompts, COUNT, chunk=64)

    @cached_property
    def chosen(self) -> dict[int, list[int]]:
        """What transformers says: after each prompt and each beginning of `greedy`, its most likely token.

        Whoever equals all of them equals a greedy generation of transformers, token by token: as long as the tokens are
        the same, so is what they follow. One pass a prompt, where generating takes one a token.
        """
        chosen = {}
        for index, prompt in self.prompts.items():
            logits = reference_logits(self.reference, prompt + self.greedy[index][:-1])
            chosen[index] = logits[len(prompt) - 1 :].argmax(dim=-1).tolist()
        return chosen
