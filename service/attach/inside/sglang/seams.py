"""What the adapter hooks in SGLang and reads from its objects.

The contract tests (`make test-attach`) hold all of it against the wheels of the versions that are
known. `CORE_METHODS` and `FRONT_METHODS` are checked again in the running engine, before anything
is hooked.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence

from service.attach.inside.versions import UnknownEngine, check_seams

ENGINE = "sglang"
TESTED = ("0.5.22", "0.5.23")
"""SGLang's patch releases change its scheduler, so each one is named."""

SCHEDULER = "sglang.srt.managers.scheduler"
BATCH = "sglang.srt.managers.schedule_batch"
GRAMMARS = "sglang.srt.constrained.grammar_manager"
RESULTS = "sglang.srt.managers.scheduler_components.batch_result_processor"
TOKENIZER = "sglang.srt.managers.tokenizer_manager"
SERVING = "sglang.srt.entrypoints.openai.serving_base"
HTTP_SERVER = "sglang.srt.entrypoints.http_server"

Methods = Mapping[tuple[str, str], Mapping[str, Sequence[str]]]

CORE_METHODS: Methods = {
    (SCHEDULER, "Scheduler"): {
        "run_event_loop": (),
        "process_input_requests": ("recv_reqs",),
        "get_next_batch_to_run": ("running_batch", "last_batch"),
        "run_batch": ("batch",),
        "process_batch_result": ("batch", "result"),
        "_add_request_to_queue": ("req", "is_retracted"),
        "_release_aborted_request": ("req",),
        "abort_request": ("recv_req",),
    },
    (BATCH, "ScheduleBatch"): {"retract_decode": ()},
    (GRAMMARS, "GrammarManager"): {"process_req_with_grammar": ("req",)},
    (RESULTS, "SchedulerBatchResultProcessor"): {
        "_normalize_decode_outputs": (),
        "move_logprobs_to_cpu": (),
    },
}
"""Hooked in the scheduler's process. The methods of the result processor are only used to see when
the tokens of a step are on the host."""

FRONT_METHODS: Methods = {
    (SERVING, "OpenAIServingBase"): {"handle_request": ("request", "raw_request")},
    (TOKENIZER, "TokenizerManager"): {
        "__init__": (),
        "_tokenize_one_request": ("obj",),
        "_send_one_request": ("tokenized_obj",),
        "_send_batch_request": ("tokenized_objs",),
        "_handle_batch_output": ("recv_obj",),
        "_handle_abort_req": ("recv_obj",),
    },
}

READ: Mapping[tuple[str, str], Sequence[str]] = {
    (SCHEDULER, "Scheduler"): (
        "server_args",
        "model_config",
        "page_size",
        "device",
        "enable_overlap",
        "schedule_policy",
        "max_total_num_tokens",
        "max_prefill_tokens",
        "max_running_requests",
        "max_req_len",
        "max_queued_requests",
        "chunked_prefill_size",
        "chunked_req",
        "waiting_queue",
        "running_batch",
        "grammar_manager",
        "pool_stats_observer",
        "spec_algorithm",
        "disaggregation_mode",
        "dllm_config",
        "enable_pdmux",
        "_pending_chunked_abort_req",
        "_engine_paused",
    ),
    (BATCH, "Req"): (
        "rid",
        "origin_input_ids",
        "output_ids",
        "sampling_params",
        "priority",
        "grammar",
        "finished_reason",
        "finished_len",
        "to_finish",
        "host_hit_length",
        "retraction_count",
        "eos_token_ids",
    ),
    (BATCH, "ScheduleBatch"): (
        "reqs",
        "forward_mode",
        "prefix_lens",
        "extend_lens",
        "decoding_reqs",
        "batch_is_full",
    ),
    (BATCH, "NextBatchPlan"): ("batch_to_run", "running_batch"),
    (BATCH, "FINISH_MATCHED_TOKEN"): ("matched",),
    (BATCH, "FINISH_MATCHED_STR"): ("matched",),
    (BATCH, "FINISHED_MATCHED_REGEX"): ("matched",),
    (BATCH, "FINISH_LENGTH"): ("length",),
    (BATCH, "FINISH_ABORT"): ("message", "status_code"),
    (GRAMMARS, "GrammarManager"): ("grammar_queue",),
    ("sglang.srt.managers.scheduler_components.pool_stats_observer", "PoolStats"): (
        "full_num_used",
        "full_evictable_size",
        "full_capacity",
    ),
    ("sglang.srt.managers.io_struct", "AbortReq"): (
        "abort_all",
        "abort_message",
        "finished_reason",
    ),
    ("sglang.srt.managers.io_struct", "BatchStrOutput"): (
        "rids",
        "finished_reasons",
        "output_ids",
    ),
    ("sglang.srt.managers.io_struct", "TokenizedGenerateReqInput"): ("rid", "input_ids"),
}
"""Attributes that the adapter reads, by the class that has them."""

_RELEASE = re.compile(r"\d+\.\d+\.\d+")


def check_version(version: str) -> None:
    """Raises UnknownEngine for a release that no contract test has seen. Builds of a known release
    (`.post1`, `+cpu`) are taken."""
    found = _RELEASE.match(version)
    if found is None or found.group() not in TESTED:
        known = ", ".join(TESTED)
        raise UnknownEngine(f"sglang {version} is not known to this adapter, which knows {known}")


def check_methods(methods: Methods) -> None:
    """Raises UnknownEngine if a method is not there or takes other parameters."""
    for (module, owner), expected in methods.items():
        try:
            home = getattr(importlib.import_module(module), owner)
        except (ImportError, AttributeError):
            raise UnknownEngine(f"there is no {module}.{owner}") from None
        check_seams(home, expected)
