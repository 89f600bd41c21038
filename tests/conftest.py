"""Fixtures that take long to build and are shared: the default model and one running server.

Tests that start servers are marked `server` here, by what they use; `make test-fast` leaves them
and those marked `long` out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.servers.otlp_receiver import OtlpReceiver
from tests.support.servers.server import Server

SLOW = (
    "test_routed_verdict.py::test_each_twin_is_named",
    "test_routed_verdict.py::test_a_twin_is_a_function",
    "test_e2e_fleet.py::",
    "test_e2e_disaggregated.py::",
    "test_shifted_clock.py::",
    "test_cuda_executor.py::test_texts_are_the_same_after_the_warm_up",
    "test_cuda_executor.py::test_texts_survive_preemption",
    "test_cuda_executor.py::test_greedy_texts_are_those_of_the_torch_executor[2]",
    "test_cuda_executor.py::test_drawn_tokens_are_those_of_the_torch_executor[2]",
    "test_cuda_executor.py::test_what_is_read_of_prompts_is_what_the_torch_executor_reads[2]",
    "test_cuda_executor.py::test_drawn_tokens_are_those_of_the_torch_executor[1]",
    "test_cuda_executor.py::test_what_is_read_of_prompts_is_what_the_torch_executor_reads[1]",
    "test_cuda_executor.py::test_graphs_are_captured_the_largest_first_and_once",
    "test_cuda_executor.py::test_the_devices_own_time_is_in_each_steps_record",
    "test_attention_choice.py::test_an_engine_with_our_kernels_writes_the_same_texts",
    "test_cuda_executor.py::test_rows_that_the_device_cannot_sample_are_sampled_on_the_host",
    "test_openvino.py::test_the_default_models_quality_is_kept",
    "test_triton.py::test_a_decoder_gives_the_same_logits_with_our_kernels[fp8]",
    "test_triton.py::test_a_decoder_gives_the_same_logits_with_our_kernels[int8]",
    "test_triton.py::test_single_queries_in_any_number_of_parts_attend_as_torch_does",
    "test_autopilot_flown.py::test_a_wrong_limit_is_found_set_measured_and_kept[tenant_max_seqs]",
    "test_autopilot_flown.py::test_nothing_is_made_worse_where_no_limit_helps[overload]",
    "test_promises_answered.py::test_the_search_comes_to_the_same_form_and_its_settings_are_enough"
    "[misconfigured-True]",
    "test_settings_excerpt.py::test_a_queue_that_other_settings_would_not_have_had",
    "test_sensitivity.py::test_verdicts_over_a_shared_fold_are_those_of_a_diagnoser_alone",
    "test_sensitivity.py::test_changes_take_part_where_their_numbers_are_used",
    "test_settings_search.py::test_a_forecast_agrees_with_a_rerun[overload]",
    "test_settings_search.py::test_a_forecast_agrees_with_a_rerun[flood]",
    "test_settings_search.py::test_the_replay_without_a_change_is_what_was_recorded[overload]",
    "test_settings_search.py::test_a_cap_for_tenants_is_what_helps_against_a_flood",
)
"""Tests of more than ten seconds each; most have a quicker one of the same subject. `make test`
leaves them out, to stay below its time on two cores; `make test-slow` runs them."""

STARTS_SERVERS = {"server", "shared_server", "default_model"}
SERVER_MODULES = (
    "tests.support.servers.server", "tests.support.servers.fleet", "benchmarks.starter",
    "lab.drills.servers",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        assert isinstance(item, pytest.Function)
        uses = {getattr(value, "__module__", None) for value in vars(item.module).values()}
        if STARTS_SERVERS & set(item.fixturenames) or uses & set(SERVER_MODULES):
            item.add_marker("server")
        if any(name in item.nodeid for name in SLOW):
            item.add_marker("slow")


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> None:
    """Tensors of tests are small: torch's other threads would only spin, on cores that servers
    and engines of the tests need. Servers are processes of their own and keep their default."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The GGUF of the default model, fetched as `phasescope pull` does."""
    from service.model_files.model_store import ensure_default_model

    return ensure_default_model(lambda line: None)


@pytest.fixture(scope="session")
def receiver() -> Iterator[OtlpReceiver]:
    """A strict OTLP receiver that the shared server exports to."""
    with OtlpReceiver(protocol="grpc") as running:
        yield running


@pytest.fixture(scope="session")
def shared_server(default_model: Path, receiver: OtlpReceiver) -> Iterator[Server]:
    """One real server on the default model; tests leave it empty."""
    with Server("--otlp-endpoint", receiver.endpoint) as running:
        yield running


@pytest.fixture
def server(shared_server: Server) -> Iterator[Server]:
    yield shared_server
    from tests.support.servers.server import eventually

    eventually(shared_server.is_empty, "an empty engine after the test")
