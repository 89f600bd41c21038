"""`phasescope attach` as a process: engines connect over the real socket."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.attach.wire import Batch, Role, SequenceName, Submitted, TurnedOff
from telemetry.facts.clock import MonotonicClock
from telemetry.facts.records import Fact
from telemetry.journal.journal_files import JournalFiles
from telemetry.metrics.catalog import all_metrics, attach
from telemetry.metrics.metric import Metric
from tests.attach.scripted_engine import Adapter, hello, shifted, started
from tests.attach.sidecar_process import COMMAND, SidecarProcess
from tests.support.servers.server import eventually
from tests.support.worlds.facts import (
    accepted,
    decode,
    parsed,
    prefill,
    queued,
    request_ended,
    sequence_ended,
    step,
    tokenized,
)

_NO_TORCH = (
    "import sys; from service.composition.attached import attaching; "
    "heavy = {'torch', 'openvino', 'tokenizers', 'transformers', 'jinja2', 'llguidance', "
    "'safetensors', 'huggingface_hub', 'gguf', 'jsonschema_rs'} & set(sys.modules); "
    "sys.exit(f'imported: {heavy}' if heavy else 0)"
)


@pytest.fixture(scope="module")
def sidecar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SidecarProcess]:
    running = SidecarProcess(tmp_path_factory.mktemp("sidecar"))
    yield running
    assert running.stop() == 0


def run_of(name: str, seq_id: int, begin_ns: int) -> tuple[list[Fact], list[Fact]]:
    """The facts of one request from `begin_ns` on: the front end's and the core's."""
    front: list[Fact] = [
        accepted(name, 0), parsed(name, 1), tokenized(name, 2), request_ended(name, 20),
    ]  # fmt: skip
    core: list[Fact] = [
        queued(seq_id, 5),
        step(seq_id * 10, 6, 9, [prefill(seq_id)]),
        step(seq_id * 10 + 1, 9, 12, [decode(seq_id)]),
        sequence_ended(seq_id, 13),
    ]
    return [shifted(one, begin_ns) for one in front], [shifted(one, begin_ns) for one in core]


def serve_one(sidecar: SidecarProcess, name: str, pid: int, has_front: bool = True) -> None:
    """An engine starts, serves one request, and ends."""
    now_ns = MonotonicClock().now_ns()
    front_facts, core_facts = run_of(name, 1, now_ns)
    core = Adapter(sidecar.socket, hello(pid=pid))
    core.send(Batch([started(now_ns, pid)]))
    if has_front:
        front = Adapter(sidecar.socket, hello(Role.FRONT_END, pid + 1))
        sent = Submitted(name, now_ns + 3_000_000, f"{name}-0", 0)
        front.send(Batch(front_facts, [], [sent]))
    core.send(Batch(core_facts, [SequenceName(1, f"{name}-0" if has_front else name)]))
    sidecar.eventually_knows(name)
    core.close()
    if has_front:
        front.close()
    eventually(lambda: not sidecar.attached()["processes"], "no process attached")


def test_a_sidecar_exposes_its_own_metrics_and_none_beyond_the_catalog(
    sidecar: SidecarProcess,
) -> None:
    serve_one(sidecar, "measured", 800)
    families = text_string_to_metric_families(sidecar.text("/metrics"))
    names = {family.name for family in families}
    own = {one.name for one in vars(attach).values() if isinstance(one, Metric)}

    assert own
    assert own - names == set()
    assert names - {metric.name for metric in all_metrics()} == set()


def test_a_request_of_two_processes_has_one_exact_timeline(sidecar: SidecarProcess) -> None:
    """Front end and core are joined, and the parts sum to the request's time."""
    serve_one(sidecar, "joined", 4000)

    def tokens() -> int:
        (sequence,) = sidecar.get("/debug/requests/joined")["sequences"]
        return int(sequence["output_tokens"])

    eventually(lambda: tokens() == 2, "both tokens of its core")
    found = sidecar.get("/debug/requests/joined")
    assert sum(entry["ns"] for entry in found["ledger"]["entries"]) == found["e2e_ns"] == 20_000_000


def test_without_a_front_end_requests_come_from_the_core(sidecar: SidecarProcess) -> None:
    """The sidecar says that it has seen the core only."""
    serve_one(sidecar, "core-only", 4100, has_front=False)
    assert sidecar.attached()["core_only"] >= 1
    assert 'phasescope_attach_sequences_total{seen="core_only"}' in sidecar.text("/metrics")


def test_the_engine_s_own_limits_are_shown_and_not_set(sidecar: SidecarProcess) -> None:
    core = Adapter(sidecar.socket, hello(pid=4200))
    core.send(Batch([started(MonotonicClock().now_ns(), 4200)]))
    eventually(lambda: sidecar.status("/ready") == 200, "a ready engine")
    assert sidecar.get("/debug/limits")["limits"]["max_num_seqs"]["value"] == "8"
    assert sidecar.status("/debug/limits", "PUT") == 405
    assert sidecar.status("/v1/models") == 404
    assert sidecar.get("/debug/autopilot")["mode"] == "off"
    core.close()
    eventually(lambda: sidecar.status("/ready") == 503, "no engine")


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "malformed"),
        (b"\xff\xff\xff\xff", "malformed"),
        (b"\x01\x00\x00\x00\xc1", "malformed"),
    ],
)
def test_a_malformed_stream_is_closed_and_counted(
    sidecar: SidecarProcess, sent: bytes, why: str
) -> None:
    before = sidecar.attached()["refused"][why]
    broken = Adapter(sidecar.socket, hello(pid=4300))
    broken.send_bytes(sent)
    assert broken.is_closed()
    assert sidecar.attached()["refused"][why] == before + 1
    broken.close()


def test_a_request_id_that_is_too_long_ends_the_connection(sidecar: SidecarProcess) -> None:
    """Adapters send none."""
    broken = Adapter(sidecar.socket, hello(Role.FRONT_END, 4400))
    broken.send(Batch([], [], [Submitted("x" * 300, 1, "a", 0)]))
    assert broken.is_closed()
    assert sidecar.attached()["refused"]["too_large"] == 1
    broken.close()


def test_a_client_that_chooses_a_long_name_costs_no_other_client_a_fact(
    sidecar: SidecarProcess,
) -> None:
    """The engine puts what clients send into the names of its sequences."""
    now_ns = MonotonicClock().now_ns()
    long, facts = "x" * 300 + "-0", run_of("beside", 1, now_ns)
    core = Adapter(sidecar.socket, hello(pid=4410))
    core.send(Batch([started(now_ns, 4410)]))
    front = Adapter(sidecar.socket, hello(Role.FRONT_END, 4411))
    sent = [Submitted("beside", now_ns + 3_000_000, "b", 0), Submitted("other", now_ns, long, 0)]
    front.send(Batch(facts[0], [], sent))
    core.send(Batch(facts[1], [SequenceName(1, "b"), SequenceName(2, long)]))
    sidecar.eventually_knows("beside")
    assert sidecar.get("/debug/requests/beside")["ledger"]["residue_ns"] == 0
    assert len(sidecar.attached()["processes"]) == 2
    core.close()
    front.close()
    eventually(lambda: not sidecar.attached()["processes"], "no process attached")


def test_a_second_core_is_refused_with_advice(sidecar: SidecarProcess) -> None:
    """Data-parallel engines want a sidecar each."""
    first, second = (Adapter(sidecar.socket, hello(pid=4500 + i, index=i)) for i in range(2))
    eventually(lambda: bool(sidecar.attached()["refused"].get("second_core")), "a refusal")
    assert any("one sidecar for each" in note["text"] for note in sidecar.attached()["notes"])
    first.close()
    assert second.is_closed(), "its adapter connects again, and is the only core then"
    second.close()


def test_an_adapter_whose_clock_is_ahead_is_counted_and_not_tried_again(
    sidecar: SidecarProcess,
) -> None:
    """Its connection stays open, and nothing is taken from it."""
    now_ns = MonotonicClock().now_ns()
    ahead = Adapter(sidecar.socket, hello(pid=4700, at_ns=now_ns + 60_000_000_000))
    eventually(lambda: sidecar.attached()["refused"]["clock"] == 1, "a refusal")
    ahead.send(Batch([started(now_ns, 4700)]))
    assert sidecar.attached()["processes"] == []
    assert "time namespace" in sidecar.attached()["notes"][-1]["text"]
    assert 'phasescope_attach_refused_total{reason="clock"} 1' in sidecar.text("/metrics")
    ahead.close()


def test_what_an_adapter_turned_off_is_said(sidecar: SidecarProcess) -> None:
    core = Adapter(sidecar.socket, hello(pid=4600))
    core.send(TurnedOff(1, "Scheduler.schedule", "this version is not known", True))
    eventually(lambda: sidecar.attached()["turned_off"]["engine_core"] == 1, "a note")
    assert "not known" in sidecar.attached()["notes"][-1]["text"]
    core.close()


def test_a_sidecar_that_starts_again_goes_on(tmp_path: Path) -> None:
    """A killed sidecar leaves its socket behind; the next one replaces it, and takes an engine that
    is in the middle of a request."""
    killed = SidecarProcess(tmp_path)
    killed.process.kill()
    killed.stop()
    assert killed.socket.exists()

    again = SidecarProcess(tmp_path)
    assert stat.S_IMODE(again.socket.stat().st_mode) == 0o600
    serve_one(again, "after", 5000)
    assert again.stop() == 0
    assert not again.socket.exists()


def test_a_command_runs_attached_and_its_exit_code_is_ours(tmp_path: Path) -> None:
    """The sidecar is ready before the command starts, and ends after it."""
    command = [
        sys.executable, "-c", "import os, socket, sys; s = socket.socket(socket.AF_UNIX); "
        "s.connect(os.environ['PHASESCOPE_ATTACH']); print('connected'); sys.exit(7)",
    ]  # fmt: skip
    both = SidecarProcess(tmp_path, command=command)
    assert both.process.stdout is not None
    assert both.process.stdout.read() == "connected\n"
    assert both.wait() == 7


def test_the_command_outlives_the_sidecar_and_gets_the_signals(tmp_path: Path) -> None:
    """A killed sidecar is said and replaced; the command answers a signal as it likes."""
    command = [
        sys.executable, "-c", "import signal, sys; "
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(9)); "
        "print('up', flush=True); signal.pause()",
    ]  # fmt: skip
    both = SidecarProcess(tmp_path, command=command)
    assert both.process.stdout is not None
    assert both.process.stderr is not None
    assert both.process.stdout.readline() == "up\n"
    children = Path(f"/proc/{both.process.pid}/task/{both.process.pid}/children").read_text()
    os.kill(int(children.split()[0]), signal.SIGKILL)
    assert "the command goes on without it" in both.process.stderr.readline()
    assert "the sidecar is ready" in both.process.stderr.readline()
    assert both.stop() == 9


def test_a_sidecar_that_starts_again_listens_where_the_command_sends(tmp_path: Path) -> None:
    """Its port is another one, and the command has read the path of its socket once."""
    command = [sys.executable, "-c", "import signal; print('up', flush=True); signal.pause()"]
    both = SidecarProcess(tmp_path, command=command, told=False)
    assert both.process.stdout is not None
    assert both.process.stderr is not None
    assert both.process.stdout.readline() == "up\n"
    children = Path(f"/proc/{both.process.pid}/task/{both.process.pid}/children").read_text()
    os.kill(int(children.split()[0]), signal.SIGKILL)
    assert "the command goes on without it" in both.process.stderr.readline()
    again = both.process.stderr.readline()
    both.stop()

    assert "its socket is" in again
    assert again.rpartition(" ")[2] == both.said.rpartition(" ")[2]


def test_a_sidecar_that_cannot_observe_starts_no_command(tmp_path: Path) -> None:
    """It is ready only when nothing can be wrong with its settings any more."""
    journal, ran = tmp_path / "journal", tmp_path / "ran"
    files = JournalFiles(journal, 1 << 20, MonotonicClock())
    own = ("--port", "0", "--socket", str(tmp_path / "attach.sock"), "--journal-dir", str(journal))
    command = [*COMMAND, *own, "--", "touch", str(ran)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    files.close()

    assert "another server writes its journal here" in done.stderr
    assert (done.returncode, ran.exists()) == (2, False)


def test_sigusr2_dumps_and_leaves_the_command_alone(tmp_path: Path) -> None:
    """As with a server; the command would end by it."""
    command = [sys.executable, "-c", "import signal; print('up', flush=True); signal.pause()"]
    both = SidecarProcess(tmp_path, command=command)
    assert both.process.stdout is not None
    assert both.process.stdout.readline() == "up\n"
    both.process.send_signal(signal.SIGUSR2)
    try:
        eventually(lambda: list(tmp_path.glob("dumps/*-signal.journal")), "a dump")
    finally:
        code = both.stop()
    assert code == 128 + signal.SIGTERM


def test_the_command_gets_an_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may run in another folder than the sidecar."""
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-c", "import os; print(os.environ['PHASESCOPE_ATTACH'])"]
    both = SidecarProcess(tmp_path, "--socket", "attach.sock", command=command, told=False)
    assert both.process.stdout is not None
    exported = both.process.stdout.read().strip()
    assert both.wait() == 0
    assert exported == str(tmp_path / "attach.sock")


def test_a_path_that_is_too_long_from_the_root_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relative it would fit, and the engine could not connect."""
    folder = tmp_path / ("deep" * 20)
    folder.mkdir()
    monkeypatch.chdir(folder)
    done = subprocess.run(
        [*COMMAND, "--port", "0", "--socket", "attach.sock"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert "is longer than 100 bytes" in done.stderr


def test_a_sidecar_that_is_told_to_end_before_it_is_ready_leaves_no_socket(tmp_path: Path) -> None:
    path = tmp_path / "attach.sock"
    command = [*COMMAND, "--port", "0", "--socket", str(path), "--dump-dir", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with process:
        eventually(path.exists, "its socket", every_s=0.001)
        process.terminate()
        process.wait(30)
    assert not path.exists()


def test_the_sidecar_imports_nothing_that_only_serving_needs() -> None:
    """Where vLLM is installed, its torch is its own."""
    done = subprocess.run([sys.executable, "-c", _NO_TORCH], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_openapi_document_has_the_routes_that_there_are(sidecar: SidecarProcess) -> None:
    """Each is answered; those of an engine of our own are not there."""
    paths = sidecar.get("/openapi.json")["paths"]
    assert "/debug/attach" in paths
    assert not [path for path in paths if path.startswith("/v1/")]
    for path, methods in paths.items():
        if "get" in methods and "{" not in path:
            assert sidecar.status(path) in (200, 503), path
