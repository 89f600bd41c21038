"""Files of tests that one of the two processes runs one after another: what is dear to make is then
made once.

They come first, so that each process begins with one of the groups; a group is to take less than a
third of the whole run, else the other process ends long before.
"""

from __future__ import annotations

# of the server of `tests/conftest.py`, which loads the default model
DEFAULT_SERVER = (
    "tests/telemetry/traces/test_e2e_traces.py",
    "tests/gateway/tools/test_e2e_tools.py",
    "tests/gateway/prompts/test_e2e_prompts.py",
    "tests/gateway/prompts/test_token_routes.py",
    "tests/gateway/chat/test_e2e_responses.py",
    "tests/gateway/chat/test_e2e_reasoning.py",
    "tests/gateway/compat/test_peer_routes.py",
    "tests/gateway/test_followed_routes.py",
    "tests/gateway/test_gateway_arrival.py",
    "tests/e2e/test_e2e_ledger.py",
    "tests/e2e/test_e2e_openai.py",
    "tests/e2e/test_e2e_structured.py",
    "tests/e2e/test_e2e_wrong_inputs.py",
    "tests/e2e/test_e2e_ingest.py",
    "tests/e2e/test_e2e_storm.py",
    "tests/dashboards/test_agents.py",
)
# of the twins of `tests/support/worlds/twins/cases.py`, and of what is said of each
TWINS = (
    "tests/lab/test_twins.py",
    "tests/diagnosis/test_classifier.py",
    "tests/diagnosis/test_confidence.py",
    "tests/diagnosis/test_findings.py",
    "tests/diagnosis/test_evidence.py",
    "tests/diagnosis/promises/test_promises.py",
    "tests/diagnosis/promises/test_promises_answered.py",
    "tests/engine/test_step_failures.py",
    "tests/telemetry/requests/test_one_number.py",
    "tests/telemetry/requests/test_stages_are_phases.py",
)
GROUPS = (DEFAULT_SERVER, TWINS)
GROUP_OF = {file: group[0] for group in GROUPS for file in group}
