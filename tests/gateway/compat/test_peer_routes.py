"""Routes that routers of other servers ask for, on a real server."""

from __future__ import annotations

from typing import Any

from service.config.settings import SamplingDefaults
from service.gateway.routes.types.peer_types import server_info, worker_load
from telemetry.metrics.vllm_names import VllmFold, vllm_families
from telemetry.stats.histograms import Histograms
from telemetry.stats.window_fold import WindowFold
from tests.support.servers.served import started
from tests.support.servers.server import Server
from tests.support.worlds.facts import prefill, step


def test_routers_learn_what_is_served_and_how_much_fits(server: Server) -> None:
    info = server.client.get("/server_info").json()
    (model,) = server.client.get("/v1/models").json()["data"]

    assert info["served_model_name"] == info["model_path"] == model["id"]
    assert info["max_model_len"] == model["max_model_len"]
    assert info["status"] == "ready"
    assert info["max_total_num_tokens"] >= info["max_model_len"]
    assert server.client.get("/get_server_info").json() == info
    about = server.client.get("/model_info").json()
    assert about == {name: info[name] for name in about}
    assert server.client.get("/get_model_info").json() == about
    assert server.client.get("/version").json() == {"version": info["version"]}


def test_an_idle_server_has_no_load(server: Server) -> None:
    answer = server.client.get("/v1/loads").json()
    (load,) = answer["loads"]

    assert (load["num_running_reqs"], load["num_waiting_reqs"], load["token_usage"]) == (0, 0, 0)
    assert load["memory"]["token_capacity"] == load["max_total_num_tokens"]
    assert server.client.get("/loads").json()["loads"][0].keys() == load.keys()


def test_sections_of_the_load_can_be_chosen(server: Server) -> None:
    def of(include: str) -> dict[str, Any]:
        answer = server.client.get("/v1/loads", params={"include": include})
        found: dict[str, Any] = answer.json()
        return found

    (core,), (more,) = of("core")["loads"], of("core,queues,memory,disagg")["loads"]
    assert set(more) - set(core) == {"queues", "memory", "disaggregation"}
    wrong = of("core,nothing")["error"]
    assert (wrong["param"], wrong["type"]) == ("include", "invalid_request_error")


def test_a_ready_server_answers_a_ping_with_an_empty_body(server: Server) -> None:
    answer = server.client.get("/ping")

    assert (answer.status_code, answer.content) == (200, b"")


def test_a_request_in_the_words_of_other_dialects_is_served(server: Server) -> None:
    """A stop text that stays, its tokens, the id that the client chose; greedy, so it is known."""
    answer = server.completion(
        prompt="1, 2, 3, 4, 5, 6,", max_tokens=40, temperature=0, stop=["9"],
        include_stop_str_in_output=True, return_token_ids=True, rid="mine", service_tier="flex",
        truncate_prompt_tokens=-1, add_special_tokens=False, extra_key="k",
    )  # fmt: skip
    body = answer.json()
    (choice,) = body["choices"]

    assert choice["text"] == " 7, 8, 9"
    assert body["id"] == "cmpl-mine"
    assert answer.headers["x-request-id"] != "mine"
    assert body["service_tier"] == "default"
    assert len(choice["prompt_token_ids"]) == body["usage"]["prompt_tokens"]
    assert len(choice["token_ids"]) == body["usage"]["completion_tokens"]


def test_limits_are_absent_until_an_engine_has_told_them() -> None:
    info = server_info("m", SamplingDefaults(), "1", None, ready=False)
    known = server_info("m", SamplingDefaults(), "1", started(), ready=True)

    assert (info.status, bool(info.max_total_num_tokens)) == ("not_ready", False)
    assert (known.status, known.max_total_num_tokens) == ("ready", 64 * 4)


def test_a_load_counts_tokens_in_blocks() -> None:
    fold = WindowFold(Histograms())
    fold.on_facts([started()])
    load = worker_load(fold.snapshot(0), started())

    assert (load.num_used_tokens, load.max_total_num_tokens) == (0, 256)
    assert load.max_running_requests == 8


def test_the_load_and_the_metrics_are_one_number() -> None:
    """Whether the gateway API's inference extension asks, or a router."""
    fold, histograms = WindowFold(Histograms()), Histograms()
    fold.on_facts([started(), step(0, 1, 2, [prefill()], blocks_used=3, running=2, waiting=5)])
    now = fold.snapshot(2_000_000)
    load = worker_load(now, started())
    shown = {
        family.metric.name: (labels, value)
        for family in vllm_families(now, histograms, VllmFold(), "m")
        for labels, value in family.samples
    }

    assert shown["vllm:num_requests_running"][1] == load.num_running_reqs == 2
    assert shown["vllm:num_requests_waiting"][1] == load.num_waiting_reqs == 5
    assert shown["vllm:kv_cache_usage_perc"][1] == load.token_usage > 0
    sizes = shown["vllm:cache_config_info"][0]
    tokens = int(sizes["block_size"]) * int(sizes["num_gpu_blocks"])
    assert tokens == load.max_total_num_tokens
