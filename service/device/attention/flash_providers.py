"""Who brings FlashAttention: packages differ in what they are called with, and in what they can do.

Each provider says whether one call takes prompts and decodes together; none is imported before it
is asked for. The calls are those of flash-attn 2.8 and of FlashAttention-3's `flash_attn_interface`
(Dao-AILab), and of torch's `varlen_attn` where that has a block table (torch 2.12, with a
FlashAttention-3 or -4 activated in it).

Shapes: queries [tokens, heads, head_dim]; keys and values are pages [pages, page_tokens, kv_heads,
head_dim]; `table` int32 [rows, pages]; `begins` int32 [rows + 1] where each row's queries begin;
`lengths` int32 [rows] how many keys a row sees, its own included. Causal at the bottom right.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from service.device.spec import EVERYTHING, Reach

_FA2_PAGE_TOKENS = 256  # FlashAttention-2 takes multiples of that only
_PAGE_TOKENS = 64
# of a captured decode: what a graph was captured with is what it is replayed with
_CAPTURED_SPLITS = 32


@dataclass(frozen=True, slots=True)
class Rows:
    """What a call needs to know of its rows; `most_queries` and `most_keys` are of one row."""

    table: torch.Tensor
    begins: torch.Tensor
    lengths: torch.Tensor
    most_queries: int
    most_keys: int


class Provider(Protocol):
    """One package."""

    @property
    def name(self) -> str: ...

    @property
    def page_tokens(self) -> int: ...

    @property
    def mixed_batch(self) -> bool:
        """Whether `any_queries` is as fast for rows with one query as `one_query`."""
        ...

    def any_queries(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        rows: Rows,
        reach: Reach = EVERYTHING,
    ) -> torch.Tensor: ...

    def one_query(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        rows: Rows,
        reach: Reach = EVERYTHING,
    ) -> torch.Tensor:
        """The same where every row has one query; may be captured. A row of length 0 is padding
        and gives anything."""
        ...


class FlashAttention3:
    """One call for all."""

    name = "flash-attn-3"
    page_tokens = _PAGE_TOKENS
    mixed_batch = True

    def __init__(self, with_cache: Callable[..., torch.Tensor]) -> None:
        self._with_cache = with_cache

    def any_queries(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        rows: Rows,
        reach: Reach = EVERYTHING,
    ) -> torch.Tensor:
        return self._call(query, keys, values, rows, reach, 0)

    def one_query(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        rows: Rows,
        reach: Reach = EVERYTHING,
    ) -> torch.Tensor:
        return self._call(query, keys, values, rows, reach, _CAPTURED_SPLITS)

    def _call(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        rows: Rows,
        reach: Reach,
        splits: int,
    ) -> torch.Tensor:
        return self._with_cache(
            query, keys, values, cache_seqlens=rows.lengths, page_table=rows.table,
            cu_seqlens_q=rows.begins, max_seqlen_q=rows.most_queries, causal=True,
            num_splits=splits, softmax_scale=reach.scale, window_size=_window(reach),
        )  # fmt: skip


class FlashAttention2:
    """Decodes apart: only they are split over the keys, and share a key head's queries."""

    name = "flash-attn-2"
    page_tokens = _FA2_PAGE_TOKENS
    mixed_batch = False

    def __init__(
        self, varlen: Callable[..., torch.Tensor], with_cache: Callable[..., torch.Tensor]
    ) -> None:
        self._varlen, self._with_cache = varlen, with_cache

    def any_queries(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        rows: Rows,
        reach: Reach = EVERYTHING,
    ) -> torch.Tensor:
        behind = torch.nn.functional.pad(rows.lengths.cumsum(0, dtype=torch.int32), (1, 0))
        return self._varlen(
            query, keys, values, rows.begins, behind, rows.most_queries, rows.most_keys,
            causal=True, block_table=rows.table, softmax_scale=reach.scale,
            window_size=_window(reach),
        )  # fmt: skip

    def one_query(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        rows: Rows,
        reach: Reach = EVERYTHING,
    ) -> torch.Tensor:
        found = self._with_cache(
            query[:, None], keys, values, cache_seqlens=rows.lengths, block_table=rows.table,
            causal=True, softmax_scale=reach.scale, window_size=_window(reach),
        )  # fmt: skip
        return found[:, 0]


class TorchVarlen:
    """Torch's own entry to what was activated in it."""

    name = "torch-varlen"
    page_tokens = _PAGE_TOKENS
    mixed_batch = True

    def __init__(self, varlen: Callable[..., torch.Tensor]) -> None:
        self._varlen = varlen

    def any_queries(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        rows: Rows,
        reach: Reach = EVERYTHING,
    ) -> torch.Tensor:
        return self._varlen(
            query, keys, values, rows.begins, None, rows.most_queries, rows.most_keys,
            window_size=_window(reach), scale=reach.scale,
            enable_gqa=query.shape[1] != keys.shape[2],
            seqused_k=rows.lengths, block_table=rows.table,
        )  # fmt: skip

    one_query = any_queries


def _window(reach: Reach) -> tuple[int, int]:
    """How many tokens before and behind its own a query sees; -1 is all."""
    return (-1 if reach.window is None else reach.window - 1, 0)


def find_provider(
    import_module: Callable[[str], Any] = importlib.import_module,
) -> tuple[Provider | None, str]:
    """The best that can be imported, and why better ones cannot."""
    faults: list[str] = []
    for name, make in (
        ("flash-attn-3", _flash_attention_3),
        ("flash-attn-2", _flash_attention_2),
        ("torch-varlen", _torch_varlen),
    ):
        try:
            return make(import_module), "; ".join(faults)
        except (ImportError, AttributeError, OSError, _Unfit) as error:
            faults.append(f"{name}: {str(error).splitlines()[0]}")
    return None, "; ".join(faults)


class _Unfit(Exception):
    """It is there, and cannot do what is needed."""


def _flash_attention_3(import_module: Callable[[str], Any]) -> Provider:
    module = import_module("flash_attn_interface")
    return FlashAttention3(_with_argument(module.flash_attn_with_kvcache, "page_table"))


def _flash_attention_2(import_module: Callable[[str], Any]) -> Provider:
    module = import_module("flash_attn")
    return FlashAttention2(
        _with_argument(module.flash_attn_varlen_func, "block_table"),
        _with_argument(module.flash_attn_with_kvcache, "block_table"),
    )


def _torch_varlen(import_module: Callable[[str], Any]) -> Provider:
    module = import_module("torch.nn.attention.varlen")
    varlen = _with_argument(module.varlen_attn, "block_table")
    active = import_module("torch.nn.attention").current_flash_attention_impl()
    if active is None:
        raise _Unfit("torch's own kernel takes no block table, and no other is activated")
    return TorchVarlen(varlen)


def _with_argument(function: Any, name: str) -> Any:
    if name not in inspect.signature(function).parameters:
        raise _Unfit(f"this version's {function.__name__} has no {name}")
    return function
