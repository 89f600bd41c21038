"""The hooks in vLLM's front end, over classes with the names and signatures of vLLM's.

That these are vLLM's names and signatures is tested against vLLM itself, in `tests_engines`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from enum import IntEnum
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware.errors import ServerErrorMiddleware

from service.attach.inside.front_end import vllm_front
from service.attach.inside.front_end.vllm_hooks import install
from service.attach.inside.middleware import AttachMiddleware, Receive, Scope, Send
from service.attach.wire import Batch, Submitted, encode, sent_name
from telemetry.facts.reasons import EndReason
from telemetry.facts.records import RequestParsed, RequestTokenized
from tests.attach.front_world import World, answering


class FinishReason(IntEnum):
    STOP = 0
    LENGTH = 1
    ABORT = 2
    ERROR = 3
    REPETITION = 4


class OnlineRenderer:
    def __init__(self) -> None:
        self.model_config = SimpleNamespace(get_diff_sampling_param=lambda: {"temperature": 0.6})
        self.answer: Any = ([], [{"prompt_token_ids": [1, 2, 3]}])

    async def render_chat(self, request: Any, *, skip_mm_cache: bool = False) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def render_completion(self, request: Any, *, skip_mm_cache: bool = False) -> Any:
        return self.answer

    async def render_responses(self, request: Any, **more: Any) -> Any:
        return self.answer


class OutputProcessor:
    def __init__(self) -> None:
        self.reqs_to_abort: list[str] = []
        self.added: list[str] = []

    def add_request(
        self, request: Any, prompt: str | None, parent_req: Any = None, request_index: int = 0
    ) -> None:
        self.added.append(request.request_id)

    def process_outputs(self, engine_core_outputs: list[Any], timestamp: float = 0.0) -> Any:
        return SimpleNamespace(reqs_to_abort=self.reqs_to_abort)


class AsyncLLM:
    def check_admission(self, n: int = 1, request_id: str | None = None) -> None:
        raise RuntimeError("queue overflow")


class BaseServing:
    @staticmethod
    def _base_request_id(raw_request: Any, default: str | None = None) -> str | None:
        return raw_request or default


MODULES = {
    "vllm.renderers.online_renderer": OnlineRenderer,
    "vllm.v1.engine.output_processor": OutputProcessor,
    "vllm.v1.engine.async_llm": AsyncLLM,
    "vllm.entrypoints.serve.engine.serving": BaseServing,
}


class Vllm:
    """Copies of the classes above, hooked, and a world in which `work` serves each request."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **members: Any) -> None:
        self.classes: dict[str, Any] = {}
        for name, base in MODULES.items():
            module = ModuleType(name)
            copied = type(base.__name__, (), dict(vars(base)) | members)
            setattr(module, base.__name__, copied)
            self.classes[base.__name__] = copied
            monkeypatch.setitem(sys.modules, name, module)
        self.work: Callable[[], Awaitable[None]]
        self.world = World(self._serve)
        install(self.world.front)
        self.renderer = self.classes["OnlineRenderer"]()
        self.processor = self.classes["OutputProcessor"]()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.work()
        await answering(200, b"{}")(scope, receive, send)

    def serve(self, work: Callable[[], Awaitable[None]]) -> None:
        self.work = work
        self.world.exchange({"x-request-id": "abc"})

    def parsed(self) -> RequestParsed:
        (found,) = (one for one in self.world.sink.facts if isinstance(one, RequestParsed))
        return found

    def tokenized(self) -> RequestTokenized:
        (found,) = (one for one in self.world.sink.facts if isinstance(one, RequestTokenized))
        return found


def body(**more: Any) -> SimpleNamespace:
    defaults = {"model": "m", "stream": True, "n": None, "model_fields_set": set()}
    return SimpleNamespace(**(defaults | more))


def core_request(name: str, max_tokens: int = 9) -> SimpleNamespace:
    sampling = SimpleNamespace(max_tokens=max_tokens)
    return SimpleNamespace(request_id=name, prompt_token_ids=[1, 2], sampling_params=sampling)


def output(name: str, tokens: int, ends: FinishReason | None = None, stop: Any = None) -> Any:
    ids = list(range(tokens))
    return SimpleNamespace(request_id=name, new_token_ids=ids, finish_reason=ends, stop_reason=stop)


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Vllm:
    return Vllm(monkeypatch)


def test_a_request_is_parsed_tokenized_submitted_and_received(vllm: Vllm) -> None:
    """Each stamp lies between those before and after it; a child of n=2 has its choice."""

    async def work() -> None:
        await vllm.renderer.render_chat(body(n=2, max_completion_tokens=7, top_k=-1))
        vllm.processor.add_request(core_request("0_chat-abc"), None, None, 0)
        vllm.processor.add_request(core_request("1_chat-abc"), None, None, 1)
        vllm.processor.process_outputs([output("0_chat-abc", 1), output("1_chat-abc", 1)])
        ends = output("0_chat-abc", 2, FinishReason.STOP, 7)
        vllm.processor.process_outputs([ends, output("of another", 5)])

    vllm.serve(work)

    world, parsed, end = vllm.world, vllm.parsed(), vllm.world.end
    assert (parsed.choices, parsed.max_tokens, parsed.stream) == (2, 7, True)
    assert (parsed.temperature, parsed.top_p, parsed.top_k) == (0.6, 1.0, 0)
    assert vllm.tokenized().prompt_tokens == 3
    assert world.sink.submitted == [
        Submitted("abc", world.sink.submitted[0].at_ns, "0_chat-abc", 0),
        Submitted("abc", world.sink.submitted[1].at_ns, "1_chat-abc", 1),
    ]
    assert (end.reason, end.output_tokens) == (EndReason.STOP_TOKEN, 4)
    assert end.received_ns is not None
    assert end.detokenized_ns is not None
    stamps = [world.accepted[0].at_ns, parsed.at_ns, vllm.tokenized().at_ns]
    stamps += [world.sink.submitted[0].at_ns, end.received_ns, end.detokenized_ns, end.at_ns]
    assert stamps == sorted(set(stamps))
    assert end.detokenize_busy_ns > 0
    assert not world.sink.turned_off


def test_values_that_no_engine_takes_cost_no_fact(vllm: Vllm) -> None:
    """vLLM checks them later than they are read; a fact that cannot be sent would count as lost."""
    large = 10**400
    more = dict.fromkeys(("n", "max_tokens", "top_k", "seed", "temperature"), large)

    async def work() -> None:
        await vllm.renderer.render_chat(body(model="m" * 5_000, prompt=["a"] * 3, **more))

    vllm.serve(work)

    parsed = vllm.parsed()
    assert encode(Batch([parsed]))
    assert parsed.max_tokens == parsed.choices == parsed.seed == (1 << 63) - 1
    assert len(parsed.model) == 256
    assert not vllm.world.sink.turned_off


def test_a_name_that_a_client_made_long_is_sent_as_the_core_sends_it(vllm: Vllm) -> None:
    name = f"0_chat-{'x' * 1_000}"

    async def work() -> None:
        vllm.processor.add_request(core_request(name), None, None, 0)
        vllm.processor.process_outputs([output(name, 1)])

    vllm.serve(work)

    assert [one.name for one in vllm.world.sink.submitted] == [sent_name(name)]
    assert vllm.world.end.output_tokens == 1


@pytest.mark.parametrize(
    ("ends", "stop", "tokens", "reason"),
    [
        (FinishReason.STOP, None, 1, EndReason.EOS),
        (FinishReason.STOP, 3, 1, EndReason.STOP_TOKEN),
        (FinishReason.LENGTH, None, 9, EndReason.MAX_TOKENS),
        (FinishReason.LENGTH, None, 8, EndReason.CONTEXT),
        (FinishReason.ABORT, None, 0, EndReason.DELETED),
        (FinishReason.ERROR, None, 0, EndReason.INTERNAL),
        (FinishReason.REPETITION, None, 4, EndReason.STOP_STRING),
    ],
)
def test_a_request_ends_as_its_sequence_does(
    vllm: Vllm, ends: FinishReason, stop: Any, tokens: int, reason: EndReason
) -> None:
    """vLLM has fewer reasons; the tokens tell the two kinds of LENGTH apart."""

    async def work() -> None:
        vllm.processor.add_request(core_request("cmpl-abc"), None)
        vllm.processor.process_outputs([output("cmpl-abc", tokens, ends, stop)])

    vllm.serve(work)

    assert vllm.world.end.reason is reason
    assert vllm.tokenized().prompt_tokens == 2


def test_a_stop_string_is_found_by_the_front_end(vllm: Vllm) -> None:
    """The core is told to abort the sequence, and names no reason."""

    async def work() -> None:
        vllm.processor.add_request(core_request("cmpl-abc"), None)
        vllm.processor.reqs_to_abort = ["cmpl-abc"]
        vllm.processor.process_outputs([output("cmpl-abc", 1)])

    vllm.serve(work)

    assert vllm.world.end.reason is EndReason.STOP_STRING


def test_what_no_middleware_has_seen_is_left_alone(vllm: Vllm) -> None:
    """Another route, or a task that outlives its request."""
    vllm.processor.add_request(core_request("pool-1"), None)
    vllm.processor.process_outputs([output("pool-1", 1)])
    asyncio.run(vllm.renderer.render_chat(body()))

    assert vllm.processor.added == ["pool-1"]
    assert not vllm.world.sink.facts
    assert not vllm.world.sink.submitted


def test_an_error_of_the_renderer_goes_on_and_leaves_a_request_without_tokens(vllm: Vllm) -> None:
    """A prompt that is too long."""

    async def work() -> None:
        vllm.renderer.answer = ValueError("too long")
        with pytest.raises(ValueError, match="too long"):
            await vllm.renderer.render_chat(body())

    vllm.serve(work)

    kinds = [type(fact).__name__ for fact in vllm.world.sink.facts]
    assert kinds == ["RequestAccepted", "RequestParsed", "RequestEnded"]


def test_a_refused_admission_is_a_full_queue(vllm: Vllm) -> None:
    """The answer's status alone would say that the server is not ready."""

    async def work() -> None:
        with pytest.raises(RuntimeError, match="queue overflow"):
            vllm.classes["AsyncLLM"]().check_admission(2)

    vllm.work = work

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        await work()
        await answering(503, b"{}")(scope, receive, send)

    vllm.world.app = AttachMiddleware(serve, attach=lambda _: vllm.world.front)
    vllm.world.exchange()

    assert vllm.world.end.reason is EndReason.QUEUE_FULL


def test_an_id_in_the_body_wins_over_the_one_that_the_middleware_gave(vllm: Vllm) -> None:
    """As it does without the adapter; a client's header wins over both."""
    base = vllm.classes["BaseServing"]._base_request_id
    named: list[str | None] = []

    async def work() -> None:
        await vllm.renderer.render_chat(body(model_fields_set={"request_id"}))
        named.append(base("header", "body"))

    vllm.work = work
    vllm.world.exchange()
    vllm.world.exchange({"x-request-id": "header"})

    assert named == ["body", "header"]


def test_a_hook_of_which_the_signature_is_another_is_not_put_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sidecar hears which one, and the others work."""

    def process_outputs(self: Any, other: Any) -> None:
        return None

    vllm = Vllm(monkeypatch, process_outputs=process_outputs)

    ((hook, reason, is_all),) = vllm.world.sink.turned_off
    assert (hook, is_all) == ("OutputProcessor.process_outputs", False)
    assert reason == "it takes (self, other, ...)"


@pytest.mark.parametrize("method", ["render_chat", "add_request", "process_outputs"])
def test_a_hook_that_keeps_raising_is_turned_off(vllm: Vllm, method: str) -> None:
    """vLLM gets its results all the same, before and after."""
    odd = SimpleNamespace()

    async def work() -> None:
        if method == "render_chat":
            assert await vllm.renderer.render_chat(odd) == vllm.renderer.answer
        elif method == "add_request":
            vllm.processor.add_request(SimpleNamespace(request_id="x"), None)
            assert vllm.processor.added[-1] == "x"
        else:
            assert vllm.processor.process_outputs([odd]).reqs_to_abort == []

    for _ in range(4):
        vllm.serve(work)

    ((hook, reason, is_all),) = vllm.world.sink.turned_off
    assert hook.endswith(f".{method}")
    assert reason.startswith("AttributeError at ")
    assert not is_all
    assert len(vllm.world.ended) == 4


@pytest.mark.parametrize("is_built", [False, True])
def test_the_builder_of_applications_is_wrapped_once_and_only_where_it_is(
    monkeypatch: pytest.MonkeyPatch, is_built: bool
) -> None:
    """The plugin runs in every process of vLLM, and may run twice in one. An application of vLLM
    has built its middlewares when it is handed out."""
    module = ModuleType("entry")

    def build_app(args: str, supported_tasks: tuple[str, ...]) -> Starlette:
        app = Starlette()
        if is_built:
            app.middleware_stack = app.build_middleware_stack()
        return app

    vars(module)["build_app"] = build_app
    monkeypatch.setitem(sys.modules, "vllm.entrypoints.launchers.api_server.entry", module)

    vllm_front.register()
    vllm_front.register()

    app = vars(module)["build_app"]("args", ())
    if is_built:
        assert isinstance(app.middleware_stack, AttachMiddleware)
        assert isinstance(app.middleware_stack._app, ServerErrorMiddleware)
    else:
        assert [one.cls for one in app.user_middleware] == [AttachMiddleware]


def test_a_front_end_without_python_is_said_so() -> None:
    """vLLM's front end in Rust is chosen by a variable of the environment."""
    assert vllm_front.no_python_front_end({}) is None
    assert "Rust" in (vllm_front.no_python_front_end({"VLLM_USE_RUST_FRONTEND": "1"}) or "")
