"""Requests made from the facts of the engine core alone, where no front end is observed.

Such a request begins when the core received it, and ends with its sequence. Its route is unknown,
and so is what came before and after: HTTP, tokenizing, text, delivery.
"""

from __future__ import annotations

import hashlib
import re

from telemetry.facts.engine_records import SequenceEnded, SequenceQueued, SequenceRefused
from telemetry.facts.reasons import EndReason
from telemetry.facts.records import (
    UNKNOWN_ROUTE,
    Fact,
    RequestAccepted,
    RequestEnded,
    RequestParsed,
    RequestTokenized,
    SequenceSubmitted,
)
from telemetry.requests.assumed_end import assumed_end

_NOT_IN_IDS = re.compile(r"[^A-Za-z0-9._-]")
_ID_CHARACTERS = 128
_OPERATION = "text_completion"  # tokens come in and go out


class CoreRequests:
    """Live requests of this kind, by sequence."""

    def __init__(self) -> None:
        self.live: dict[int, str] = {}

    def begin(
        self, fact: SequenceQueued | SequenceRefused, name: str | None, model: str
    ) -> list[Fact]:
        """The first facts of the request of a sequence that the core queues or refuses."""
        received_ns = getattr(fact, "received_ns", None)
        at_ns = fact.at_ns if received_ns is None else min(received_ns, fact.at_ns)
        request_id = _request_id(name, fact.seq_id)
        self.live[fact.seq_id] = request_id
        return [
            RequestAccepted(
                request_id=request_id,
                at_ns=at_ns,
                trace_id=hashlib.blake2b(
                    f"{request_id} {fact.seq_id} {at_ns}".encode(), digest_size=16
                ).hexdigest(),
                parent_span_id=None,
                trace_sampled=None,
                trace_state=None,
                route=UNKNOWN_ROUTE,
                operation=_OPERATION,
                tenant=fact.tenant,
                slo_class="",
            ),
            RequestParsed(
                request_id=request_id,
                at_ns=at_ns,
                model=model,
                stream=False,
                choices=1,
                max_tokens=fact.max_tokens,
                temperature=None,
                top_p=None,
                top_k=None,
                seed=None,
            ),
            RequestTokenized(request_id, at_ns, fact.prompt_tokens),
            SequenceSubmitted(request_id, at_ns, fact.seq_id, 0),
        ]

    def end(self, fact: SequenceEnded) -> list[Fact]:
        """The end of the request with that of its sequence."""
        request_id = self.live.pop(fact.seq_id, None)
        if request_id is None:
            return []
        return [
            RequestEnded(
                request_id=request_id,
                at_ns=fact.at_ns,
                reason=fact.reason,
                status=0,
                error_type=None,
                output_tokens=fact.output_tokens,
                first_sent_ns=None,
                detokenized_ns=None,
                detokenize_busy_ns=0,
                bytes_sent=0,
                detected_ns=None,
            )
        ]

    def end_all(
        self, at_ns: int, reason: EndReason, but: frozenset[int] = frozenset()
    ) -> list[Fact]:
        """The engine has died, or does not list them: all but the sequences `but` end."""
        over = [seq_id for seq_id in self.live if seq_id not in but]
        return [
            assumed_end(self.live.pop(seq_id), at_ns, reason, error_type=reason.value)
            for seq_id in over
        ]


def _request_id(name: str | None, seq_id: int) -> str:
    """The engine's name, as far as it can be a request id; names are unique among live ones. A long
    one keeps its beginning, and a digest tells it from others that begin alike."""
    if not name:
        return f"sequence-{seq_id}"
    text = _NOT_IN_IDS.sub("-", name)
    if len(text) <= _ID_CHARACTERS:
        return text
    digest = hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
    return f"{text[: _ID_CHARACTERS - len(digest) - 1]}-{digest}"
