"""Proofs, seals, the key file, the membership file, what a node refuses, and load reports."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.config.setting import ConfigError
from service.engine.plan import SamplingParams
from service.fleet.membership.static_file import StaticFile
from service.fleet.wire import messages
from service.fleet.wire.checks import refusal_of
from service.fleet.wire.handshake import Forged, Session
from service.fleet.wire.key_file import KeyFileError, read_key
from service.gateway.engine_client.packed_ids import length_of
from telemetry.facts.engine_records import EngineStarted

nonces = st.binary(min_size=32, max_size=32)
STARTED = EngineStarted(0, 1, "m", "b", "d", 64, 16, 256, 8, 64, True, 1, 100, 100_000)


@settings(max_examples=20)
@given(nonces, nonces, st.binary(min_size=32, max_size=64), st.text(max_size=20))
def test_a_proof_needs_the_key_and_is_of_one_side_and_one_session(
    node: bytes, gateway: bytes, key: bytes, name: str
) -> None:
    session = Session(key, 1, node, gateway)
    proof = session.proof_of_gateway(name)
    assert proof == Session(key, 1, node, gateway).proof_of_gateway(name)
    others = [
        session.proof_of_node(name),
        session.proof_of_gateway(name + "x"),
        Session(key + b"x", 1, node, gateway).proof_of_gateway(name),
        Session(key, 2, node, gateway).proof_of_gateway(name),
        Session(key, 1, bytes(31) + b"\1", gateway).proof_of_gateway(name),
        Session(key, 1, node, bytes(31) + b"\1").proof_of_gateway(name),
    ]
    assert proof not in others


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=5), st.data())
def test_a_sealed_frame_opens_once_in_its_place_and_unchanged(
    payloads: list[bytes], data: st.DataObject
) -> None:
    session = Session(b"k" * 32, 1, bytes(32), bytes(32))
    writes, reads = session.seal_of_node(), session.seal_of_node()
    sealed = [writes.seal(one) for one in payloads]
    assert [reads.open(one) for one in sealed] == payloads

    index = data.draw(st.integers(0, len(sealed) - 1))
    changed = bytearray(sealed[index])
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= data.draw(st.integers(1, 255))
    reads = session.seal_of_node()
    for one in sealed[:index]:
        reads.open(one)
    with pytest.raises(Forged):
        reads.open(bytes(changed))
    with pytest.raises(Forged):
        session.seal_of_gateway().open(sealed[0])


@settings(max_examples=10)
@given(st.lists(st.integers(0, 1 << 31), max_size=70))
def test_the_length_of_encoded_token_ids_is_read_without_decoding(ids: list[int]) -> None:
    for times in (1, 300, 70_000 // max(1, len(ids))):
        many = ids * times
        assert length_of(msgspec.Raw(msgspec.msgpack.encode(many))) == len(many)


def test_a_key_that_is_short_or_not_there_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "short").write_text("secret\n")
    with pytest.raises(KeyFileError, match="openssl rand"):
        read_key(str(tmp_path / "short"))
    with pytest.raises(KeyFileError, match="No such file"):
        read_key(str(tmp_path / "none"))
    (tmp_path / "good").write_text("k" * 32 + "\n")
    assert read_key(str(tmp_path / "good")) == b"k" * 32


def test_a_changed_membership_is_read_and_a_broken_one_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "fleet.key").write_text("k" * 32)
    path = tmp_path / "engines.toml"
    path.write_text('key_file = "fleet.key"\n[engines.a]\naddress = "10.0.0.1:9100"\n')
    found = StaticFile(str(path))
    assert found.members()["a"].port == 9100
    path.write_text(
        'key_file = "fleet.key"\n[engines.a]\naddress = "[::1]:9100"\ndraining = true\n'
        '[engines.b]\naddress = "host:1"\n'
    )
    assert set(found.members()) == {"a", "b"}
    assert found.members()["a"].host == "::1"
    assert found.members()["a"].draining
    for broken in ("not toml", 'key_file = "k"\n[engines.a]\naddress = "nowhere"\n'):
        path.write_text(broken)
        assert set(found.members()) == {"a", "b"}
    with pytest.raises(ConfigError):
        StaticFile(str(path))


@pytest.mark.parametrize("host", ["gpu..lan", "g" * 64, f"{'g' * 64}.lan", ".lan"])
def test_an_address_that_no_resolver_can_be_asked_for_is_refused(tmp_path: Path, host: str) -> None:
    (tmp_path / "fleet.key").write_text("k" * 32)
    path = tmp_path / "engines.toml"
    path.write_text(f'key_file = "fleet.key"\n[engines.a]\naddress = "{host}:9100"\n')
    with pytest.raises(ConfigError, match="names no host"):
        StaticFile(str(path))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"max_tokens": 254}, "context"),
        ({"prompt": [100]}, "vocabulary"),
        ({"sampling": SamplingParams(logit_bias={-1: 0.0})}, "vocabulary"),
        ({"sampling": SamplingParams(logprobs=21)}, "logprobs"),
        ({"sampling": SamplingParams(temperature=-1.0)}, "temperature"),
        ({"sampling": SamplingParams(temperature=float("nan"))}, "temperature"),
        ({"sampling": SamplingParams(top_k=-1)}, "top_k"),
        ({"sampling": SamplingParams(min_p=float("nan"))}, "min_p"),
        ({"sampling": SamplingParams(repetition_penalty=0.0)}, "penalty"),
        ({"sampling": SamplingParams(logit_bias={1: float("inf")})}, "bias"),
    ],
)
def test_a_node_checks_what_a_gateway_sends(change: dict[str, object], said: str) -> None:
    about = messages.WireRequestContext(request_id="r", trace_id="a" * 32, span_id="b" * 16)
    good = messages.RemoteSubmit(
        seq_id=1, incarnation=1, about=about, prompt=[1, 2, 3], max_tokens=4,
        sampling=SamplingParams(),
    )  # fmt: skip
    assert refusal_of(good, STARTED, 100) is None
    refused = refusal_of(msgspec.structs.replace(good, **change), STARTED, 100)
    assert refused is not None
    assert said in refused


def test_what_a_gateway_may_not_send_is_refused_while_it_is_read() -> None:
    about = messages.WireRequestContext(request_id="r", trace_id="A" * 32, span_id="b" * 16)
    bad = messages.RemoteSubmit(
        seq_id=1, incarnation=1, about=about, prompt=[1], max_tokens=4, sampling=SamplingParams()
    )
    with pytest.raises(msgspec.ValidationError):
        messages.to_node.decode(messages.packed(bad))
