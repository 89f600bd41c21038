"""The tests that `make test` leaves out to stay below its time on two cores: `make test-slow`.

Each with the quicker test that has its subject in `make test`: the same property of fewer or
smaller cases. A name is the end of a test's id, or `FILE::` for all of a file; without its
parameters it stands for all of them.
"""

from __future__ import annotations

_KERNEL = "test_triton.py::test_sequences_of_any_length_attend_as_torch_does"
_FAMILIES = "test_parity_families.py::test_prefill_whole_and_in_chunks_then_decode"
_SAVED = "test_attribution.py::test_attributed_time_is_what_the_run_without_its_fault_saves"
_OUTPUTS = f"{_SAVED}[queue_overload-outputs-outputs]"
_FLOWN = "test_autopilot_flown.py::test_a_wrong_limit_is_found_set_measured_and_kept"
_FORM = (
    "test_promises_answered.py::test_the_search_comes_to_the_same_form_and_its_settings_are_enough"
)
_EXCERPT = (
    "test_settings_excerpt.py::"
    "test_a_replay_of_an_excerpt_gives_what_a_replay_of_the_whole_run_gives"
)
_HIDES = "test_classifier.py::test_of_two_faults_at_once_neither_hides_the_other"
_QUALITY = "test_quantized.py::test_eight_bits_keep_the_models_quality"
_LOGITS = "test_tensor_parallel.py::test_two_ranks_give_the_logits_of_one"
_CAUGHT = "test_sim_mutations.py::test_the_invariant_catches_the_scheduler_that_breaks_it"
_AGAIN = "test_recorded_fleet.py::test_another_policy_does_what_a_fleet_with_it_does"
_RANKS = "test_tensor_parallel.py::test_four_ranks_write_the_texts_of_one"
_DEATH = "test_tensor_parallel.py::test_the_death_of_a_rank_ends_the_step"
_SETTINGS_REPLAY = "test_replay_modelled.py::test_the_replay_is_a_function_of_its_inputs"
_SAME = "test_recorded_fleet.py::test_a_fleet_that_is_simulated_again_does_what_it_did"
_HEALTHY = "test_twins.py::test_the_other_twins_are_healthy"
_CHAIN = "test_chains.py::test_the_chain_of_a_compound_is_right"
_FAINT = "test_tail_harm.py::test_a_faint_fault_is_named_and_held"
_DECISIONS = "test_corpus.py::test_a_recorded_episode_replays_to_the_same_decisions"
_REPEATED = "test_e2e_replay.py::test_every_decision_of_a_real_run_is_repeated"
_FITTED = "test_e2e_replay.py::test_a_real_run_replays_by_its_fitted_cost"
_COMMAND = "test_e2e_replay.py::test_the_command_replays_a_running_servers_journal"
_AGENT = "test_e2e_traces.py::test_an_independent_agent_reads_our_spans"
_ENDS = "test_e2e_tracing.py::test_a_server_ends_while_its_receiver_hangs"
_EIGHT_BITS = "test_tensor_parallel.py::test_8_bit_weights_are_sharded_too"
_SLOWLY = (
    "test_connection.py::test_a_client_that_reads_slowly_and_steadily_gets_all_of_a_large_answer"
)

SLOW = {
    "test_e2e_fleet.py::": "test_fleet_world.py::",
    "test_e2e_disaggregated.py::": "test_real_transfer.py::",
    "test_e2e_nixl.py::": "test_real_transfer.py::",
    "test_shifted_clock.py::": "test_real_clocks.py::",
    f"{_REPEATED}[depth-1]": f"{_REPEATED}[depth-2]",
    f"{_FITTED}[depth-1]": f"{_FITTED}[depth-2]",
    f"{_COMMAND}[depth-1]": f"{_COMMAND}[depth-2]",
    f"{_AGENT}[http/protobuf]": f"{_AGENT}[grpc]",
    f"{_ENDS}[silent]": f"{_ENDS}[hangs]",
    f"{_SLOWLY}[asyncio": f"{_SLOWLY}[uvloop",
    f"{_SAME}[prefix_affinity-sharegpt]": f"{_SAME}[least_finish-sharegpt]",
    f"{_SAME}[prefix_affinity-agentic]": f"{_SAME}[least_finish-agentic]",
    f"{_SAME}[round_robin-shared_prefix]": f"{_SAME}[least_finish-shared_prefix]",
    f"{_SAME}[round_robin-agentic]": f"{_SAME}[least_finish-agentic]",
    "test_recorded_fleet.py::test_older_signals_do_what_they_do_in_a_fleet": _AGAIN,
    "test_recorded_fleet.py::test_another_number_of_engines_does_what_so_many_do": _AGAIN,
    "test_recorded_fleet.py::test_limits_of_engines_can_be_changed_too": _AGAIN,
    "test_recorded_fleet.py::test_a_simulation_is_a_function_of_the_record": (
        "test_recorded_fleet.py::test_each_request_ends_once_with_as_many_tokens_as_it_had"
    ),
    "test_routed_verdict.py::test_each_twin_is_named": (
        "test_routed_verdict.py::test_a_slow_engine_is_named_by_the_gateways_diagnosis"
    ),
    "test_routed_verdict.py::test_a_twin_is_a_function": (
        "test_routed_verdict.py::test_the_books_are_empty_when_all_sequences_have_ended"
    ),
    # an emulated GPU
    "test_kernels_compile.py::test_each_kernel_compiles_as_it_is_launched[all]": (
        "test_kernels_compile.py::test_each_kernel_compiles_as_it_is_launched[some]"
    ),
    "test_attention_choice.py::test_an_engine_with_our_kernels_writes_the_same_texts": _KERNEL,
    "test_triton.py::test_a_decoder_gives_the_same_logits_with_our_kernels": _KERNEL,
    "test_triton.py::test_single_queries_in_any_number_of_parts_attend_as_torch": _KERNEL,
    f"{_LOGITS}[qwen2]": f"{_LOGITS}[llama]",
    f"{_LOGITS}[qwen3]": f"{_LOGITS}[llama]",
    f"{_RANKS}[2]": f"{_RANKS}[1]",
    f"{_DEATH}[before a step]": f"{_DEATH}[within a step]",
    f"{_EIGHT_BITS}[fp8]": f"{_EIGHT_BITS}[int8]",
    "test_tensor_parallel.py::test_a_server_survives_a_lost_rank": f"{_DEATH}[within a step]",
    # transformers reads the default model for half a minute
    "test_parity_greedy.py::": _FAMILIES,
    "test_device_loading.py::test_the_default_files_metadata_equals": "test_gguf_families.py::",
    "test_openvino.py::test_the_default_models_quality_is_kept": "test_openvino.py::",
    f"{_QUALITY}[int8-both]": f"{_QUALITY}[int8-kv]",
    f"{_QUALITY}[fp8-kv]": f"{_QUALITY}[int8-kv]",
    f"{_QUALITY}[fp8-weights]": f"{_QUALITY}[int8-weights]",
    # searches and replays
    **{
        f"{_DECISIONS}[{name}": f"{_DECISIONS}[host_stall"
        for name in (
            "budget_too_small", "cancellation_leak", "cpu_starvation", "healthy_host_stall",
            "heavy_sampling", "ingest_backlog", "kv_exhaustion", "long_prompts",
            "memory_bandwidth", "oversized_batch", "prefill_interference", "queue_overload",
            "throttled", "unfairness",
        )
    },
    **{
        f"{_CHAIN}[{name}_then_queue]": f"{_CHAIN}[stalls_then_queue]"
        for name in ("samples", "neighbour", "hogs", "quota", "schemas", "flush")
    },
    f"{_FAINT}[host_stall-stopped]": f"{_FAINT}[host_stall-blocked_anywhere]",
    f"{_FAINT}[host_stall-collections]": f"{_FAINT}[host_stall-blocked_anywhere]",
    f"{_FAINT}[slow_client-one_tenant_in_ten]": f"{_FAINT}[slow_client-one_reader_in_ten]",
    f"{_FAINT}[prefix_cache_cold-rare_flushes]":
        f"{_FAINT}[prefix_cache_cold-one_tenant_in_ten]",
    f"{_HEALTHY}[healthy_busy]": f"{_HEALTHY}[healthy_light]",
    f"{_HEALTHY}[healthy_surges]": f"{_HEALTHY}[healthy_light]",
    f"{_HEALTHY}[healthy_swing]": f"{_HEALTHY}[healthy_light]",
    "test_settings_search.py::test_the_same_record_gives_the_same_answer": _SETTINGS_REPLAY,
    "test_promises_answered.py::test_the_root_cause_has_the_answer_in_its_finding": (
        "test_promises_answered.py::test_replays_confirm_or_correct_the_form"
    ),
    f"{_CAUGHT}[18-ServesAllOverdueFirst]": f"{_CAUGHT}[18-LetsLateHoldUp]",
    f"{_CAUGHT}[18-KeepsOverdueWaiting]": f"{_CAUGHT}[18-LetsLateHoldUp]",
    "test_autopilot_flown.py::test_with_advice_only_nothing_is_set": (
        "test_autopilot.py::test_advice_is_withdrawn_when_all_is_well_again"
    ),
    f"{_FLOWN}[tenant_max_seqs]": f"{_FLOWN}[max_batched_tokens]",
    f"{_FLOWN}[max_num_seqs]": f"{_FLOWN}[max_batched_tokens]",
    "test_autopilot_flown.py::test_nothing_is_made_worse_where_no_limit_helps[overload]":
        "test_autopilot_flown.py::test_nothing_is_made_worse_where_no_limit_helps[well]",
    f"{_FORM}[misconfigured-True]": f"{_FORM}[impossible-None]",
    "test_settings_excerpt.py::test_a_queue_that_other_settings_would_not_have_had": _EXCERPT,
    "test_settings_excerpt.py::test_limits_that_were_set_while_it_ran": _EXCERPT,
    "test_sensitivity.py::test_verdicts_over_a_shared_fold_are_those": "test_sensitivity.py::",
    "test_sensitivity.py::test_changes_take_part_where_their_numbers_are": "test_sensitivity.py::",
    f"{_SAVED}[queue_overload-requests": _OUTPUTS,
    f"{_SAVED}[oversized_batch": _OUTPUTS,
    f"{_SAVED}[host_stall": _OUTPUTS,
    f"{_SAVED}[prefill_interference": _OUTPUTS,
    f"{_SAVED}[throttled": _OUTPUTS,
    f"{_SAVED}[grammar_cost": _OUTPUTS,
    f"{_SAVED}[cancellation_leak": _OUTPUTS,
    f"{_SAVED}[adapter_churn": _OUTPUTS,
    f"{_HIDES}[names1": f"{_HIDES}[names0",
    f"{_HIDES}[names2": f"{_HIDES}[names0",
    "test_promises_live.py::test_steady_misses_since_the_start_are_named": (
        "test_promises.py::test_each_form_is_named_since_the_first_requests"
    ),
}  # fmt: skip
