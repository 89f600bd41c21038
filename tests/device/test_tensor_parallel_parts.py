"""What one rank has of a model, what cannot be shared out, and what ranks tell each other."""

from __future__ import annotations

import msgspec
import pytest
import torch

from service.config.settings import ConfigError
from service.device.loader import load_executor
from service.device.models.tensors import tensor_names
from service.device.parallel.messages import (
    PackedStep,
    inputs_of,
    pack_step,
    pack_times,
    unpack_order,
    unpack_times,
)
from service.device.sharding.collectives import refuse_impossible, skew_ns, slowest_rank
from service.device.sharding.shard import ShardedWeights, TensorParallelRank, floor_shape, part_of
from service.device.spec import DUMMY_SHAPES
from telemetry.facts.clock import MonotonicClock
from tests.support.models.ranked import (
    ARCHITECTURES,
    CPU,
    DUMMY,
    config_of,
    steps,
    weights_of,
)
from tests.support.worlds.facts import MS, decode, step
from tests.support.worlds.metrics_world import MetricsWorld, engine_started
from tests.telemetry.stats.test_exposition import one, text

BY_ROWS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "lm_head")
BY_COLUMNS = ("o_proj", "down_proj")


@pytest.mark.parametrize("kind", ARCHITECTURES)
@pytest.mark.parametrize("count", [1, 2, 4])
def test_the_shards_together_are_the_whole_model(kind: str, count: int) -> None:
    whole = weights_of(kind)
    ranks = [ShardedWeights(whole, TensorParallelRank(index, count)) for index in range(count)]

    for name in tensor_names(whole.spec):
        parts = [rank.tensor(name) for rank in ranks]
        if any(part in name for part in BY_ROWS):
            outputs = max(0, parts[0].dim() - 2)
            assert torch.equal(torch.cat(parts, dim=outputs), whole.tensor(name)), name
        elif any(part in name for part in BY_COLUMNS):
            assert torch.equal(torch.cat(parts, dim=-1), whole.tensor(name)), name
        else:
            assert all(torch.equal(part, whole.tensor(name)) for part in parts), name


@pytest.mark.parametrize("count", [2, 4])
def test_a_tied_head_becomes_slices_of_the_embedding(count: int) -> None:
    whole = weights_of("tied")
    ranks = [ShardedWeights(whole, TensorParallelRank(index, count)) for index in range(count)]

    assert not any(rank.spec.tied_embeddings for rank in ranks)
    heads = [rank.tensor("lm_head.weight") for rank in ranks]
    assert {tuple(head.shape) for head in heads} == {(ranks[0].spec.head_rows, 64)}
    assert torch.equal(torch.cat(heads), whole.tensor("model.embed_tokens.weight"))


def test_a_shard_keeps_no_memory_of_the_whole_tensor() -> None:
    part = ShardedWeights(weights_of(), TensorParallelRank(1, 2)).tensor("lm_head.weight")

    assert part.untyped_storage().nbytes() == part.numel() * part.itemsize


def test_a_step_has_one_floor_on_a_machine_and_another_on_each_gpu() -> None:
    """Ranks on a CPU share the machine's bandwidth; a GPU reads its own part with its own."""
    spec = DUMMY_SHAPES["llama-8b"]
    whole = spec.shape(2, 131_072)

    assert floor_shape(spec, 2, CPU, 2, 65_536) == whole
    part = floor_shape(spec, 2, torch.device("cuda"), 2, 65_536)
    assert (2 * part.q_size, 2 * part.kv_size) == (whole.q_size, whole.kv_size)
    assert (2 * part.ffn, 2 * part.vocab) == (whole.ffn, whole.vocab)
    assert part.cell_bytes == 65_536


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"heads": 3, "kv_heads": 3}, "3 attention heads"),
        ({"heads": 4, "kv_heads": 1}, "1 key/value heads"),
        ({"ffn": 129}, "129 feed-forward columns"),
        ({"vocab": 511}, "511 tokens of vocabulary"),
    ],
)
def test_a_model_that_cannot_be_sharded_equally_is_refused(
    changes: dict[str, int], what: str
) -> None:
    with pytest.raises(ConfigError, match=f"the model's {what} cannot be shared out equally"):
        part_of(weights_of(**changes).spec, 2)


def test_norms_over_all_heads_are_refused() -> None:
    spec = weights_of(qk_norm=True, wide_qk_norm=True).spec
    with pytest.raises(ConfigError, match="norms over all heads of queries and of keys need all"):
        part_of(spec, 2)


def test_the_rank_counts_that_a_model_allows_are_listed() -> None:
    with pytest.raises(ConfigError, match=r"this model allows 1, 2$"):
        load_executor(config_of(DUMMY, 4), MonotonicClock(), lambda stage: None)


def test_settings_that_cannot_go_together_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(DUMMY, 2)
    with pytest.raises(ConfigError, match="leave it or --tensor-parallel out"):
        refuse_impossible(msgspec.structs.replace(config, kv_offload_bytes=1 << 20), CPU)
    elsewhere = msgspec.structs.replace(config, executor="native")
    with pytest.raises(ConfigError, match="add --executor torch"):
        load_executor(elsewhere, MonotonicClock(), lambda stage: None)
    with pytest.raises(ConfigError, match="--tensor-parallel must be at least 1"):
        msgspec.structs.replace(config, tensor_parallel=0).validate()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match="torch finds 1; use as many or fewer"):
        refuse_impossible(config, torch.device("cuda"))


def test_a_step_arrives_as_it_was_sent() -> None:
    for inputs in steps():
        order = unpack_order(pack_step(inputs))
        assert isinstance(order, PackedStep)
        found = inputs_of(order, CPU)

        for name in ("token_ids", "positions", "slot_mapping", "sampled"):
            assert torch.equal(getattr(found, name), getattr(inputs, name)), name
        assert (found.decodes, found.prefills) == (inputs.decodes, inputs.prefills)


def test_the_skew_of_a_step_is_that_of_its_all_reduces() -> None:
    """First one rank is late and then another: it is not forgiven by being early elsewhere."""
    assert skew_ns([[9_000, 1_000], [2_000, 4_000], [3_000, 8_000]]) == 7_000 + 7_000
    assert skew_ns([[], []]) == 0


def test_the_slowest_rank_is_the_one_that_waits_least() -> None:
    assert slowest_rank([[9_000, 1_000], [2_000, 4_000], [3_000, 8_000]]) == 1
    assert list(unpack_times(pack_times([0, 1 << 40]))) == [0, 1 << 40]


def test_skews_are_added_up_where_there_are_ranks() -> None:
    recorded = [
        step(number, 10 * number, 10 * number + 10, [decode(1)], rank_skew_ns=skew)
        for number, skew in enumerate([2 * MS, 0, None])
    ]
    shared = text(MetricsWorld().feed([engine_started(), *recorded]))
    alone = text(MetricsWorld().feed([engine_started(), recorded[-1]]))

    assert one(shared["phasescope_rank_skew_seconds"]) == 0.002
    assert not alone["phasescope_rank_skew_seconds"].samples
