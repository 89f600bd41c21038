"""The screen as text: what an operator reads, at the sizes of real terminals."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console

from dashboards.monitor.client import Client, Unreachable
from dashboards.monitor.panels import MEASURES
from dashboards.monitor.screen import screen
from diagnosis.symptoms import Evidence, Finding, Link, MissedPromise, MissForm, Symptom
from diagnosis.verdicts.classifier import Diagnosis
from telemetry.stats.snapshot import AutopilotLine, GridRow, Percentiles, Snapshot
from telemetry.stats.totals import Totals
from tests.support.servers.server import Server, free_port
from tests.support.worlds.metrics_world import MetricsWorld, one_request

EMPTY = Snapshot(
    at_ns=0,
    window_ns=10_000_000_000,
    ready=True,
    engine_pid=1,
    engine_restarts=0,
    model="SmolLM2",
    backend="torch-cpu",
    running=3,
    waiting=2,
    waiting_tokens=640,
    blocks_used=25,
    blocks_cached=0,
    blocks_total=100,
    max_seqs=64,
    budget_tokens=512,
    steps_total=7,
    step_ns_p50=41_500_000,
    prompt_tokens_per_s=12.5,
    output_tokens_per_s=80.0,
    requests_per_s=0.5,
    prompt_tokens_total=1,
    output_tokens_total=2,
    preemptions_total=0,
    requests_total={"finished": 4, "rejected": 0, "cancelled": 1, "failed": 0},
    percentiles={"ttft": Percentiles(4, 120_000_000, 250_000_000, None, 12_345_000_000)},
    grid_step_ids=(10, 15),
    grid=(GridRow("chat-7", 7, "running", 33, 5, "wPDDDx"),),
    facts_lost=0,
    folds_detached=(),
    spans_exported=9,
    spans_dropped=0,
    gpu={"status": "unavailable: no driver"},
)
HEALTHY = Diagnosis((), 0, 7, True)
SICK = Diagnosis(
    (
        Finding(
            symptom=Symptom.QUEUE_OVERLOAD,
            confidence=0.91,
            claim="requests lost 5000 ms",
            harm_ms=5000.0,
            evidence=(Evidence("wait_seqs", 5000.0, "ms"),),
            culprits=(),
            runbook="runbooks/queue_overload.md",
        ),
    ),
    0,
    7,
    False,
)


def text_of(snapshot: Snapshot, diagnosis: Diagnosis, width: int, height: int, **k: str) -> str:
    console = Console(width=width, height=height, file=io.StringIO(), color_system=None)
    with console.capture() as capture:
        console.print(screen(snapshot, diagnosis, "http://host:8000", width, height, **k))
    return capture.get()


def test_a_chain_of_causes_is_one_line() -> None:
    chain = (Link(Symptom.SLOW_CLIENT, 1200.0), Link(Symptom.KV_EXHAUSTION, 900.4))
    (finding,) = SICK.findings
    sick = msgspec.structs.replace(SICK, findings=(msgspec.structs.replace(finding, chain=chain),))

    shown = text_of(EMPTY, sick, 140, 45)

    assert "slow_client 1,200 ms -> kv_exhaustion 900 ms" in shown


@pytest.mark.parametrize(("width", "height"), [(80, 24), (140, 45), (60, 40), (220, 60)])
def test_everything_that_matters_is_on_every_screen(width: int, height: int) -> None:
    """Load, latency, diagnosis and the batch, within the width."""
    text = text_of(EMPTY, HEALTHY, width, height)

    for expected in ("3 of 64", "2 (640 tokens)", "25/100", "80.0 tokens/s", "41.5 ms", "120 ms"):
        assert expected in text, expected
    for expected in ("healthy", "chat-7", "·P███x", "12.3 s"):
        assert expected in text, expected
    assert max(len(line) for line in text.splitlines()) <= width


@pytest.mark.parametrize(("width", "height"), [(60, 24), (80, 24)])
def test_the_verdict_is_on_a_small_screen(width: int, height: int) -> None:
    """The terminal cuts off what does not fit; so the diagnosis is not what comes last, however
    long it is and however much was measured."""
    measured = Percentiles(4, 120_000_000, 250_000_000, None, 12_345_000_000)
    busy = msgspec.structs.replace(EMPTY, percentiles=dict.fromkeys(MEASURES, measured))
    (finding,) = SICK.findings
    long = msgspec.structs.replace(finding, claim="requests lost 5000 ms " * 20)
    worse = msgspec.structs.replace(SICK, findings=(long, finding))

    for diagnosis in (SICK, worse):
        seen = "\n".join(text_of(busy, diagnosis, width, height).splitlines()[:height])
        for expected in ("queue_overload (0.91)", "runbooks/queue_overload.md", "3 of 64"):
            assert expected in seen, expected
    assert len(text_of(busy, SICK, width, height).splitlines()) <= height


def test_the_batch_has_the_lines_that_a_long_diagnosis_leaves() -> None:
    (finding,) = SICK.findings
    long = msgspec.structs.replace(finding, claim="requests lost 5000 ms " * 20)
    worse = msgspec.structs.replace(SICK, findings=(long,))

    for diagnosis in (HEALTHY, SICK, worse):
        assert len(text_of(EMPTY, diagnosis, 110, 45).splitlines()) == 45


def test_the_load_panel_shows_the_hit_rate_of_the_prefix_cache_and_of_a_larger_one() -> None:
    totals = Totals(admitted_tokens=1000, prefix_hit_tokens=420, ghost_hit_tokens=90)
    shown = text_of(msgspec.structs.replace(EMPTY, totals=totals), HEALTHY, 120, 40)

    assert "42 % cached, +9 % if larger" in shown
    assert "no lookups" in text_of(EMPTY, HEALTHY, 120, 40)


def test_the_load_panel_shows_the_budget_in_force() -> None:
    """A number, or auto with what the last step computed of what its time allowed."""
    auto = msgspec.structs.replace(EMPTY, auto_budget=True)
    last = msgspec.structs.replace(
        auto, step_tokens=84, step_budget_tokens=120, step_target_ns=100_000_000
    )
    free = msgspec.structs.replace(last, step_target_ns=None)

    for snapshot, shown in (
        (EMPTY, "512 tokens a step"),
        (auto, "auto "),
        (free, "auto, last 84 of 120 "),
        (last, "auto, last 84 of 120 in 100 ms"),
    ):
        line = next(
            one for one in text_of(snapshot, HEALTHY, 120, 40).splitlines() if "budget" in one
        )
        assert shown in line


def test_what_was_not_measured_is_a_dash_and_not_a_zero() -> None:
    """The p99 above is None."""
    line = next(line for line in text_of(EMPTY, HEALTHY, 140, 45).splitlines() if "ttft" in line)

    assert line.split("ttft")[1].split()[:6] == ["4", "120", "ms", "250", "ms", "-"]


def test_findings_losses_restarts_and_an_unreachable_server_are_on_the_screen() -> None:
    """Everything that an operator must act on."""
    troubled = msgspec.structs.replace(
        EMPTY, ready=False, facts_lost=3, spans_dropped=8, folds_detached=("spans",),
        engine_restarts=2,
    )  # fmt: skip
    text = text_of(troubled, SICK, 140, 45)
    for expected in (
        "queue_overload", "runbooks/queue_overload.md", "3 facts lost", "8 spans dropped",
        "fold spans is detached", "2 engine restarts", "not ready",
    ):  # fmt: skip
        assert expected in text, expected

    assert "unreachable for 4 s" in text_of(EMPTY, HEALTHY, 80, 24, note="unreachable for 4 s")


def test_a_missed_promise_has_a_line_with_its_form_and_the_limit_that_binds() -> None:
    """And none while every promise is kept."""
    missed = MissedPromise(
        slo_class="voice", form=MissForm.MISCONFIGURED, objective=0.99, requests=40, missed=31,
        late_first_tokens=31, slow_tokens=0, unserved=0, burn=77.5, burn_5min=77.5,
        ttft_target_ms=150.0, ttft_p95_ms=900.0, itl_target_ms=100.0, worst_gap_p95_ms=None,
        parts={"wait: seqs": 900.0}, setting="max_num_seqs",
    )  # fmt: skip
    finding = Finding(
        symptom=Symptom.SLO_MISSED, confidence=0.99, claim="voice is late", harm_ms=1.0,
        evidence=(), promises=(missed,), runbook="runbooks/slo_missed.md",
    )  # fmt: skip
    text = text_of(EMPTY, Diagnosis((finding,), 0, 0, False, "fault"), 120, 40)
    (line,) = [one for one in text.splitlines() if one.startswith(" promises")]

    assert line.strip() == "promises  voice misconfigured 31 of 40 missed, max_num_seqs binds"
    assert " promises" not in text_of(EMPTY, HEALTHY, 120, 40)


def test_an_unreachable_server_is_one_line_of_error() -> None:
    """Its address and the reason."""
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1.*refused"):
        Client(f"127.0.0.1:{free_port()}").snapshot()


def test_top_and_diagnose_read_a_running_server(capsys: pytest.CaptureFixture[str]) -> None:
    """The commands as a user types them."""
    from service.cli.main import main

    with Server("--model", "dummy:tiny") as server:
        server.completion(max_tokens=2)
        assert main(["top", "--once", server.url]) == 0
        assert "dummy:tiny on native-cpu" in capsys.readouterr().out
        assert main(["diagnose", server.url]) == 0
        assert "healthy" in capsys.readouterr().out
        assert main(["diagnose", "--json", server.url]) == 0
        assert '"findings": []' in capsys.readouterr().out
    assert main(["diagnose", server.url]) == 1
    assert "cannot be read" in capsys.readouterr().err


def test_the_goodput_line_names_the_classes_that_had_requests() -> None:
    """With the burn of the last minute; a class without requests has none."""
    world = MetricsWorld().feed(one_request([300], slo_class="voice"))
    report = world.metrics.slo.report(1_000_000_000)
    shown = text_of(msgspec.structs.replace(EMPTY, slo=report), HEALTHY, 120, 40)

    assert "voice 0.0 % good, burn 100.0" in shown
    assert "chat" not in shown.replace("chat-7", "")
    assert "no request in the last minute" in text_of(EMPTY, HEALTHY, 120, 40)


def test_the_line_of_the_autopilot_says_what_it_decided_last() -> None:
    line = AutopilotLine(
        mode="act", state="measuring", decision="applied", limits={"max_num_seqs": 16},
        why="promised: chat 41 % -> 97 % good", at_ns=EMPTY.at_ns - 4_000_000_000,
    )  # fmt: skip
    shown = text_of(msgspec.structs.replace(EMPTY, autopilot=line), HEALTHY, 140, 45)

    assert "autopilot  act, measuring  applied max_num_seqs 16 4 s ago: promised" in shown
    silent = msgspec.structs.replace(line, at_ns=None, decision=None)
    assert "autopilot" not in text_of(
        msgspec.structs.replace(EMPTY, autopilot=silent), HEALTHY, 140, 45
    )
