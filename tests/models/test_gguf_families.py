"""A GGUF file of each family gives transformers' logits; what it does not state is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

from service.config.settings import ConfigError
from service.device.attention.torch_paged import TorchPagedAttention
from service.device.cache.kv_cache import PlainKvCache
from service.device.inputs import build_inputs
from service.device.models.model import Decoder
from service.device.models.weight_source import WeightSource
from service.device.weights.gguf import GgufWeights
from service.engine.plan import Plan
from tests.models.test_parity_families import BT, CPU, FP32, chunk, close, some_ids
from tests.support.models.gguf_families import GGUF_ARCHITECTURES, write_family
from tests.support.models.tiny_families import random_model


def logits_of(source: WeightSource, ids: list[int]) -> torch.Tensor:
    """Of the last token of one prompt."""
    cache = PlainKvCache(source.spec, 8, BT, torch.float32, CPU)
    decoder = Decoder(source, TorchPagedAttention(BT, CPU), 256, FP32, CPU)
    plan = Plan(0, (), (chunk(ids, 0, len(ids), [3, 1, 4, 6, 5], True),), (), (), (), (), 1000)
    (logits,) = decoder.forward(build_inputs(plan, BT, CPU), cache)
    return logits


@pytest.mark.parametrize("name", GGUF_ARCHITECTURES)
def test_a_gguf_of_each_family_gives_transformers_logits(name: str, tmp_path: Path) -> None:
    """Names, fused and stacked tensors, pairs side by side, norms around one, keys."""
    theirs = random_model(name)
    path = write_family(tmp_path / "model.gguf", theirs, GGUF_ARCHITECTURES[name])
    ids = some_ids(70, seed=2)

    with torch.inference_mode():
        wanted: Any = theirs(torch.tensor([ids])).logits[0, -1]
    close(logits_of(GgufWeights(str(path)), ids), wanted)


def test_an_olmo_3_in_a_file_that_says_olmo2_is_refused(tmp_path: Path) -> None:
    """Its windows and its two ropes are another family's."""
    writer = gguf.GGUFWriter(tmp_path / "olmo3.gguf", "olmo2")
    writer.add_sliding_window_pattern([True, True, False])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ConfigError, match=r"sliding_window_pattern.*OLMo 3"):
        GgufWeights(str(tmp_path / "olmo3.gguf"))
