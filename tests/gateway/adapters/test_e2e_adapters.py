"""Sixteen LoRA adapters on one server, with memory for four: names, isolation, load and unload."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from dashboards.source import journal_of
from diagnosis.root_cause.whatif import identities_of
from service.device.spec import DUMMY_SHAPES
from telemetry.facts.adapter_records import AdapterFact
from tests.support.models.adapters import adapter_tensors, write_adapter
from tests.support.servers.server import Server, eventually, sse_events

COUNT = 16
NAMES = [f"writer-{number}" for number in range(COUNT)]
PLACED = 4
MODEL = "dummy:tiny"
BASE = "tiny"
PROMPT = [7 + place % 90 for place in range(40)]  # two full blocks and more
KEY = {"authorization": "Bearer inside"}
LONG = 440  # tokens: enough to stop the engine in their middle


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    for number, name in enumerate(NAMES):
        write_adapter(folder / name, adapter_tensors(DUMMY_SHAPES["tiny"], 4, number))
    (folder / "broken").mkdir()
    return folder


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[Server]:
    flags = (
        "--model", MODEL, "--served-model-name", BASE, "--max-model-len", "512",
        "--debug-key", "inside", "--vllm-metrics",
        "--lora-memory", "64MiB", "--max-loras", str(PLACED), "--lora-root", str(root),
        "--lora", *(f"{name}={root / name}" for name in NAMES),
    )  # fmt: skip
    with Server(*flags) as running:
        running.client.headers.update(KEY)
        yield running


def asked(server: Server, name: str, max_tokens: int = 12, **more: Any) -> httpx.Response:
    body = {
        "model": name, "prompt": PROMPT, "max_tokens": max_tokens, "temperature": 0,
        "ignore_eos": True, **more,
    }  # fmt: skip
    return server.completion(**body)


def text(server: Server, name: str) -> str:
    answer = asked(server, name)
    assert answer.status_code == 200, answer.text
    found: str = answer.json()["choices"][0]["text"]
    return found


def error_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def load(server: Server, name: str, folder: str, **more: Any) -> httpx.Response:
    body = {"lora_name": name, "lora_path": folder, **more}
    return server.client.post("/v1/load_lora_adapter", json=body)


def unload(server: Server, name: str, **more: Any) -> httpx.Response:
    return server.client.post("/v1/unload_lora_adapter", json={"lora_name": name, **more})


def names_of(server: Server) -> list[str]:
    return [one["id"] for one in server.client.get("/v1/models").json()["data"]]


def metric(server: Server, line: str) -> str:
    text: str = server.client.get("/metrics").text
    return next(one for one in text.splitlines() if one.startswith(line))


def test_every_adapter_is_listed_with_its_base_model_and_folder(server: Server, root: Path) -> None:
    base, *adapters = server.client.get("/v1/models").json()["data"]

    assert (base["root"], base["parent"]) == (base["id"], None)
    assert [one["id"] for one in adapters] == NAMES
    assert {one["parent"] for one in adapters} == {base["id"]}
    assert [one["root"] for one in adapters] == [str(root / name) for name in NAMES]
    assert sum(one["placed"] for one in adapters) <= PLACED
    one = server.client.get(f"/v1/models/{NAMES[3]}").json()
    assert (one["id"], one["rank"]) == (NAMES[3], 4)


def test_texts_are_those_of_each_adapter_alone_when_all_are_asked_at_once(server: Server) -> None:
    """More adapters than there is memory for: they are evicted and loaded again meanwhile."""
    alone = {name: text(server, name) for name in (BASE, *NAMES)}

    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda name: text(server, name), (*NAMES, BASE, *NAMES)))

    assert together == [alone[name] for name in (*NAMES, BASE, *NAMES)]
    assert len(set(alone.values())) == COUNT + 1
    assert float(metric(server, "phasescope_adapter_evictions_total").split()[-1]) > 0
    assert 0 < float(metric(server, "phasescope_adapters_placed ").split()[-1]) <= PLACED
    assert 'max_lora="4"' in metric(server, "vllm:lora_requests_info")


def test_an_adapter_reuses_its_own_blocks_and_no_others(server: Server) -> None:
    prompt = [11 + place % 77 for place in range(48)]

    def cached(name: str) -> int:
        usage = asked(server, name, prompt=prompt).json()["usage"]
        found: int = usage["prompt_tokens_details"]["cached_tokens"]
        return found

    assert [cached(name) for name in (BASE, NAMES[0], NAMES[1])] == [0, 0, 0]
    assert min(cached(NAMES[0]), cached(NAMES[1]), cached(BASE)) > 0


def test_a_wait_for_an_adapter_is_a_part_of_its_own_and_parts_sum_to_the_time(
    server: Server,
) -> None:
    for name in NAMES[:PLACED]:
        text(server, name)
    answer = asked(server, NAMES[PLACED + 1])

    facts = server.facts_of(answer.headers["x-request-id"])
    entries = facts["ledger"]["entries"]
    assert sum(entry["ns"] for entry in entries) == facts["e2e_ns"]
    assert facts["ledger"]["residue_ns"] == 0
    assert {entry["part"] for entry in entries if entry.get("reason") == "adapter"} == {"adapter"}
    assert answer.json()["model"] == NAMES[PLACED + 1]


def test_a_name_that_is_not_served_is_refused_with_those_that_are(server: Server) -> None:
    answer = asked(server, "somebody")

    assert error_of(answer) == (404, "model_not_found")
    assert NAMES[0] in answer.json()["error"]["message"]


def test_an_adapter_is_loaded_and_unloaded_while_the_server_runs(server: Server) -> None:
    answer = load(server, "guest", NAMES[2])

    assert (answer.status_code, answer.text) == (
        200, "Success: LoRA adapter 'guest' added successfully.",
    )  # fmt: skip
    assert text(server, "guest") == text(server, NAMES[2])
    assert error_of(load(server, "guest", NAMES[3])) == (400, "name_taken")
    assert load(server, "guest", NAMES[3], load_inplace=True).status_code == 200
    assert text(server, "guest") == text(server, NAMES[3])
    assert unload(server, "guest").status_code == 200
    assert error_of(asked(server, "guest")) == (404, "model_not_found")
    assert error_of(unload(server, "guest")) == (404, "adapter_not_found")


@pytest.mark.parametrize("path", ["../elsewhere", "/etc", "writer-0/../.."])
def test_only_folders_below_the_root_are_read(server: Server, path: str) -> None:
    assert error_of(load(server, "guest", path)) == (400, "path_not_allowed")


def test_a_broken_adapter_is_an_error_of_its_load_and_is_not_listed(server: Server) -> None:
    assert error_of(load(server, "guest", "broken")) == (400, "adapter_failed")
    assert "guest" not in names_of(server)


def test_adapters_are_for_the_holder_of_the_debug_key(server: Server) -> None:
    for path in ("load", "unload"):
        answer = httpx.post(f"{server.url}/v1/{path}_lora_adapter", json={"lora_name": "x"})
        assert answer.status_code == 401


class Stream:
    """A stream with an adapter, held in its middle: its engine is stopped."""

    def __init__(self, server: Server, name: str) -> None:
        self.texts: list[str] = []
        self.error = ""
        self._server, self._name = server, name
        self._engine = server.snapshot()["engine_pid"]
        self._has_begun = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        assert self._has_begun.wait(60)
        os.kill(self._engine, signal.SIGSTOP)

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def is_held(self) -> bool:
        """Whether the engine was stopped before it had ended."""
        held: bool = self._server.snapshot()["running"] == 1
        return held

    def finish(self) -> None:
        """Let it go on to its end."""
        self.resume()
        self._thread.join(60)

    def resume(self) -> None:
        os.kill(self._engine, signal.SIGCONT)

    def _read(self) -> None:
        body = {
            "model": self._name, "prompt": PROMPT, "max_tokens": LONG, "temperature": 0,
            "ignore_eos": True, "stream": True,
        }  # fmt: skip
        url = f"{self._server.url}/v1/completions"
        with httpx.stream("POST", url, json=body, timeout=120) as answer:
            for line in answer.iter_lines():
                for event in sse_events([line]):
                    self._take(event)

    def _take(self, event: Any) -> None:
        if event == "[DONE]":
            return
        if "error" in event:
            self.error = event["error"]["code"]
        else:
            self.texts.append(event["choices"][0]["text"])
            self._has_begun.set()


def held_stream(server: Server, name: str) -> Stream:
    for _ in range(20):
        stream = Stream(server, name)
        if stream.is_held():
            return stream
        stream.finish()
    raise AssertionError("no stream could be held")


@pytest.fixture
def guest(server: Server) -> Iterator[str]:
    assert load(server, "guest", NAMES[5]).status_code == 200
    yield "guest"
    unload(server, "guest", mode="force")


def test_an_unload_during_use_is_refused_or_waits_and_the_text_stays_whole(
    server: Server, guest: str
) -> None:
    whole = asked(server, NAMES[5], max_tokens=LONG).json()["choices"][0]["text"]
    stream = held_stream(server, guest)
    with ThreadPoolExecutor(2) as pool:
        refused = pool.submit(unload, server, guest, mode="refuse")
        waiting = pool.submit(unload, server, guest, mode="wait", timeout=50)
        eventually(lambda: refused.running() and waiting.running(), "both to be sent")
        stream.resume()
        answers = refused.result().status_code, waiting.result().status_code
    stream.finish()

    assert answers in ((409, 200), (404, 200))  # 404: the other one came first
    assert (stream.text, stream.error) == (whole, "")
    assert guest not in names_of(server)


def test_an_unload_by_force_ends_what_uses_the_adapter_with_a_typed_error(
    server: Server, guest: str
) -> None:
    stream = held_stream(server, guest)
    with ThreadPoolExecutor(1) as pool:
        forced = pool.submit(unload, server, guest, mode="force")
        eventually(forced.running, "the command to be sent")
        stream.resume()
        assert forced.result().status_code == 200
    stream.finish()

    assert stream.error == "adapter_unloaded"
    eventually(server.is_empty, "an empty engine")


def test_the_journal_has_the_story_of_the_adapters_and_replays_exactly(server: Server) -> None:
    with journal_of(server.url, "inside") as journal:
        assert any(isinstance(fact, AdapterFact) for fact in journal.facts())
        for identity in identities_of(journal):
            assert identity.holds, identity.difference


def test_an_engine_that_takes_over_serves_what_was_loaded_at_run_time(
    server: Server, guest: str
) -> None:
    before = text(server, guest)
    os.kill(server.snapshot()["engine_pid"], signal.SIGKILL)
    eventually(lambda: not server.is_ready(), "the death of the engine")
    assert error_of(asked(server, guest)) == (503, "not_ready")
    assert {guest, *NAMES} <= set(names_of(server))
    eventually(server.is_ready, "another engine", 60)
    eventually(lambda: asked(server, guest).status_code == 200, "the adapter")

    assert text(server, guest) == before
