"""What honoured fields of other dialects ask of prompt and answer."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from service.gateway.ingest.compat.fields import ForeignFields

TIER = "default"  # the only one there is
_FITTING = -1  # as many tokens of the prompt as fit
_LENGTH_BYTES = 4  # of the first part, before it: no two pairs are the same bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CompatOptions:
    """The fields of other dialects in one request. `prompt_tokens` None: the prompt is not cut, -1:
    to what fits; `add_special` None: as the route does."""

    keep_stop: bool = False
    keep_special: bool = False
    add_special: bool | None = None
    prompt_tokens: int | None = None
    cut_right: bool = False
    token_ids: bool = False
    name_token_ids: bool = False
    answer_id: str | None = None
    tier: str | None = None
    running_usage: bool = False


NO_COMPAT_OPTIONS = CompatOptions()


def compat_options_of(sent: ForeignFields, running_usage: bool) -> CompatOptions:
    """The options in a body whose dialects have been checked."""
    return CompatOptions(
        keep_stop=bool(sent.include_stop_str_in_output or sent.no_stop_trim),
        keep_special=sent.skip_special_tokens is False,
        add_special=sent.add_special_tokens,
        prompt_tokens=sent.truncate_prompt_tokens,
        cut_right=sent.truncation_side == "right",
        token_ids=bool(sent.return_token_ids),
        name_token_ids=bool(sent.return_tokens_as_token_ids),
        answer_id=sent.request_id or sent.rid,
        tier=None if sent.service_tier is None else TIER,
        running_usage=running_usage,
    )


def salt_of(cache_salt: str | None, extra_key: str | None) -> str:
    """One salt of both; two requests share it only if they share both. That of two is a digest,
    which is no longer than one may be, and the same at every gateway."""
    if extra_key is None:
        return cache_salt or ""
    first = (cache_salt or "").encode()
    both = len(first).to_bytes(_LENGTH_BYTES, "little") + first + extra_key.encode()
    return hashlib.blake2b(both, digest_size=32).hexdigest()


def cut_prompt(
    ids: list[int], compat_options: CompatOptions, context_tokens: int, output_tokens: int
) -> list[int]:
    """The tokens of a prompt that are kept, so that `output_tokens` (at least 1) can follow."""
    most = compat_options.prompt_tokens
    if most is None:
        return ids
    if most == _FITTING:
        most = max(0, context_tokens - max(1, output_tokens))
    if compat_options.cut_right:
        return ids[:most]
    return ids[max(0, len(ids) - most) :]
