"""Several ranks compute what one computes; a lost rank is reported and not waited for."""

from __future__ import annotations

import os
import re
import signal
import tempfile
import threading
from pathlib import Path

import pytest
import torch

from service.device.loader import LoadedEngine
from service.device.parallel.decoder import ParallelDecoder
from service.device.parallel.ranks import RankFailed
from telemetry.facts.reasons import StepFailure
from tests.support.models.parity import Engine
from tests.support.models.ranked import (
    ARCHITECTURES,
    DUMMY,
    engine_of,
    logits_of,
    model_in,
)
from tests.support.servers.server import Server, eventually

pytestmark = pytest.mark.long

PROMPTS = [[20, 21, 22, 23, 24], list(range(40, 90)), [7] * 33, [300]]
OUTPUT_TOKENS = 12
GENEROUS_S = 120.0  # only turns a hang into a failure


def decoder_of(loaded: LoadedEngine) -> ParallelDecoder:
    decoder = loaded.executor._decoder
    assert isinstance(decoder, ParallelDecoder)
    return decoder


def is_gone(pid: int) -> bool:
    """Ended, whether or not anybody asked how."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_two_ranks_give_the_logits_of_one(kind: str, tmp_path: Path) -> None:
    """And closed ranks end without a report of a lost one."""
    lost: list[str] = []
    model = model_in(tmp_path, kind)
    with engine_of(model, 1) as alone, engine_of(model, 2, lost) as shared:
        (pid,) = decoder_of(shared)._ranks.pids
        assert shared.backend.name == "torch-cpu x2"
        assert 2 * shared.backend.block_bytes == alone.backend.block_bytes
        theirs, ours = logits_of(alone), logits_of(shared)

    assert [tuple(logits.shape) for logits in ours] == [(0, 512), (2, 512)]
    torch.testing.assert_close(ours[1], theirs[1], rtol=1e-4, atol=1e-5)
    assert is_gone(pid)
    assert lost == []


def test_ranks_that_have_met_leave_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may be killed at any time, and nobody would clean up."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with engine_of(DUMMY, 2) as loaded:
        assert list(tmp_path.iterdir()) == []
        assert logits_of(loaded)[1].isfinite().all()


@pytest.mark.parametrize("depth", [1, 2])
def test_four_ranks_write_the_texts_of_one(depth: int, tmp_path: Path) -> None:
    """In chunks and batches; and each step tells how far the ranks were apart."""
    model = model_in(tmp_path)
    texts, skews_ns = [], []
    for ranks in (1, 4):
        with engine_of(model, ranks, pipeline_depth=depth) as loaded:
            engine = Engine(loaded, depth=depth, max_seqs=4, budget_tokens=16)
            texts.append(engine.greedy(PROMPTS, OUTPUT_TOKENS))
            skews_ns.append([step.rank_skew_ns for step in engine.steps])

    assert texts[1] == texts[0]
    assert all(len(set(text)) > OUTPUT_TOKENS // 2 for text in texts[0]), "texts that can differ"
    assert engine.chunks > len(PROMPTS)
    assert set(skews_ns[0]) == {None}
    assert all(skew_ns is not None and skew_ns >= 0 for skew_ns in skews_ns[1])
    assert any(skews_ns[1])


@pytest.mark.parametrize("form", ["int8", "fp8"])
def test_8_bit_weights_are_sharded_too(form: str, tmp_path: Path) -> None:
    """A rank's scales are of its own columns, so results differ by rounding, but not from those
    of floats by more than one rank's do."""
    model = model_in(tmp_path)
    with engine_of(model, 1) as exact:
        truth = logits_of(exact)[1]
    errors = []
    for ranks in (1, 2):
        with engine_of(model, ranks, weights_format=form, kv_dtype=form) as loaded:
            errors.append((logits_of(loaded)[1] - truth).square().mean().sqrt().item())

    assert 0 < errors[0] < truth.std().item() / 2
    assert errors[1] < 1.5 * errors[0]


@pytest.mark.parametrize("moment", ["before a step", "within a step"])
def test_the_death_of_a_rank_ends_the_step(moment: str, tmp_path: Path) -> None:
    """Those who wait for the step and the watch are told whose it was, although the other ranks
    cannot go on without it either."""
    lost: list[str] = []
    errors: list[tuple[StepFailure, str]] = []
    with engine_of(model_in(tmp_path), 4, lost) as loaded:
        engine, decoder = Engine(loaded, max_seqs=4), decoder_of(loaded)
        pid = decoder._ranks.pids[1]

        def generate() -> None:
            try:
                engine.greedy(PROMPTS, OUTPUT_TOKENS)
            except RankFailed as error:
                errors.append((error.kind, str(error)))

        if moment == "before a step":
            os.kill(pid, signal.SIGKILL)
            generate()
        else:
            os.kill(pid, signal.SIGSTOP)
            step = threading.Thread(target=generate)
            step.start()
            eventually(lambda: decoder._times_due, "a step that waits", GENEROUS_S)
            os.kill(pid, signal.SIGKILL)
            step.join(GENEROUS_S)
        eventually(lambda: lost, "the word of the watch", GENEROUS_S)

    said = "rank 2 of 4 was ended by signal 9"
    assert errors == [(StepFailure.RANK_LOST, said)]
    assert lost == [said]


def ranks_of(engine_pid: int) -> list[int]:
    """The processes that an engine has started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == engine_pid:
            found.append(int(stat.parent.name))
    return found


def test_a_server_survives_a_lost_rank_and_leaves_no_process_behind() -> None:
    """The supervisor starts an engine with new ranks; ranks of a killed engine end with it."""
    flags = ("--executor", "torch", "--tensor-parallel", "2", "--max-model-len", "256")
    with Server("--model", "dummy:tiny", *flags) as server:
        assert server.completion(max_tokens=4).status_code == 200
        eventually(
            lambda: re.search(
                r"^phasescope_rank_skew_seconds_total \S*[1-9]",
                server.client.get("/metrics").text,
                re.MULTILINE,
            ),
            "a value for the ranks",
        )
        (rank,) = ranks_of(server.snapshot()["engine_pid"])

        os.kill(rank, signal.SIGKILL)
        eventually(lambda: not server.is_ready(), "unreadiness", GENEROUS_S)
        eventually(server.is_ready, "readiness again", GENEROUS_S)

        assert server.snapshot()["engine_restarts"] == 1
        (finding,) = server.client.get("/debug/diagnosis").json()["findings"]
        assert finding["symptom"] == "step_failure"
        assert "rank_lost" in finding["claim"]
        assert server.completion(max_tokens=4).status_code == 200
        engine = server.snapshot()["engine_pid"]
        (rank,) = ranks_of(engine)
        os.kill(engine, signal.SIGKILL)
        eventually(lambda: is_gone(rank), "the rank's end", GENEROUS_S)
