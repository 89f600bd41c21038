"""Is the text of each adapter the one of transformers with PEFT?

Sixteen random adapters on the default model, made and saved by PEFT: ranks 8 to 64, four choices of
modules, every third rank-stabilised. All of them, and the base model, answer in one batch; then
transformers with PEFT is asked about every token of every text: a greedy text is its own exactly
where no token is behind its own choice. With --dtype float32 both compute the same numbers; with
bfloat16 the reference has weights that are rounded alike, and ours a cache of keys and values that
is rounded besides.

    .venv/bin/python -m benchmarks.lora.parity [--tokens 48]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.lora.adapters import configs, name_of, with_adapters
from benchmarks.machine import machine
from service.config.settings import EngineConfig, ModelKind, ModelRef
from service.device.loader import load_executor
from service.model_files.model_store import ensure_default_model
from service.text.tokenizer import load_tokenizer
from telemetry.facts.clock import MonotonicClock
from tests.support.models.adapters import texts
from tests.support.models.parity import Judge, load_reference

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results" / "lora_parity.json"
COUNT = 16
_LORA_BYTES = 2 << 30


def prompts_of(model: ModelRef) -> list[list[int]]:
    """Windows of a public-domain text, 8 to 120 tokens."""
    text = (HERE.parent / "data" / "quality.txt").read_text()
    ids = load_tokenizer(model).encode(text)
    return [ids[97 * i : 97 * i + 8 + 7 * i] for i in range(COUNT + 1)]


def judged(
    model: Any, prompts: list[list[int]], found: list[list[int]], base: list[list[int]]
) -> list[dict[str, Any]]:
    """A row for each text; the last one is the base model's."""
    rows = []
    for index, (prompt, text) in enumerate(zip(prompts, found, strict=True)):
        judge = Judge(model)
        if index < COUNT:
            model.set_adapter(name_of(index))
            behind = judge.behind(prompt, text)
        else:
            with model.disable_adapter():
                behind = judge.behind(prompt, text)
        places = [place for place, gap in enumerate(behind) if gap > 0]
        rows.append(
            {
                "adapter": index if index < COUNT else "none",
                "tokens": len(text),
                "not_the_reference_s_choice": len(places),
                "most_logits_behind": round(max(behind), 6),
                "differs_from_base_at": next(
                    (i for i, (a, b) in enumerate(zip(text, base[index], strict=True)) if a != b),
                    None,
                ),
            }
        )
    return rows


def measure(dtype: Any, tokens: int) -> dict[str, Any]:
    path = ensure_default_model(print)
    model = ModelRef(kind=ModelKind.GGUF, path=str(path), name="default")
    config = EngineConfig(
        model=model, dtype=dtype, executor="native", max_model_tokens=512,
        lora_bytes=_LORA_BYTES,
    )  # fmt: skip
    loaded = load_executor(config, MonotonicClock(), lambda stage: None)
    prompts = prompts_of(model)
    stated = configs(COUNT)
    reference = load_reference(path)
    if dtype == "bfloat16":
        for parameter in reference.parameters():
            parameter.data = parameter.data.bfloat16().float()
    with tempfile.TemporaryDirectory() as folder:
        theirs = with_adapters(reference, stated, Path(folder))
        used_bytes = [
            loaded.executor.place_adapter(i + 1, loaded.read_adapter(Path(folder) / name_of(i)))
            for i in range(COUNT)
        ]
    numbers = [*range(1, COUNT + 1), 0]
    found = texts(loaded.executor, prompts, numbers, tokens)
    base = texts(loaded.executor, prompts, [0] * len(prompts), tokens)
    loaded.executor.close()
    rows = judged(theirs, prompts, found, base)
    return {
        "dtype": dtype,
        "backend": loaded.backend.name,
        "adapter_bytes": used_bytes[-1],
        "texts_equal": sum(row["not_the_reference_s_choice"] == 0 for row in rows),
        "texts": len(rows),
        "adapters": [
            {**settings, **row} for settings, row in zip([*stated, {}], rows, strict=True)
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=48)
    arguments = parser.parse_args()
    torch.set_grad_enabled(False)
    runs = []
    for dtype in ("float32", "bfloat16"):
        runs.append(measure(dtype, arguments.tokens))
        print(f"{dtype}: {runs[-1]['texts_equal']} of {runs[-1]['texts']} texts are PEFT's")
        RESULTS.write_text(json.dumps({"machine": machine(), "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
