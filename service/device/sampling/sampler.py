"""Draws the next token of each sampled row.

Order of operations: log-probabilities are taken from the raw logits; then the masks of
grammars, logit_bias, min_tokens, the penalties, the end of a reasoning whose budget is used up,
temperature, min_p, top_k, top_p; then the draw. This is the order of vLLM.

Randomness is counter based: output number i of a request with seed s is drawn with one
uniform number that is a hash of (s, i). So a draw from equal logits never depends on the batch it
was computed in, on preemption, or on the machine's generator. `service.device.sampling.draw` has
the draw itself.

A step of greedy rows that want nothing else is one argmax over the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch

from service.device.pinned import on_device
from service.device.sampling.draw import draw_rows
from service.device.sampling.draw_on_device import Draws, draws_of
from service.device.sampling.grammar import MaskRows
from service.device.sampling.grammar_compiler import GrammarCompiler
from service.device.sampling.slot import Slot
from service.engine.plan import (
    DecodeRow,
    PrefillChunk,
    Sample,
    SlotStart,
    TokenLogprob,
)
from service.engine.reasoning import Place
from telemetry.facts.clock import Clock

_LEAST_PENALTY = 0.01  # a logit divided by less may be infinite, and no row could be drawn
_MASK64 = (1 << 64) - 1
_SCORED_ROWS = 32  # at a time, since each takes a vocabulary of numbers


def uniform(seed: int, output_index: int) -> float:
    """A number in [0, 1) that depends on nothing else (splitmix64's finaliser)."""
    value = (seed * 0x9E3779B97F4A7C15 + (output_index + 1) * 0xD1B54A32D192ED03) & _MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return ((value ^ (value >> 31)) >> 11) * 2.0**-53


class Sampler:
    """Per-slot sampling state and the draw itself.

    `last_mask_ns` and `last_masked_rows` tell what grammars cost the latest `sample`:
    finding the masks, applying them, and following the drawn tokens. With a GPU it is the
    host's time; the kernels that apply the masks are part of the step like all others.
    """

    def __init__(
        self, vocab: int, clock: Clock | None = None, compiler: GrammarCompiler | None = None
    ) -> None:
        self._vocab = vocab
        self._clock = clock
        self._compiler = compiler
        self._masks = MaskRows(vocab)
        self._slots: dict[int, Slot] = {}
        self._followed: set[int] = set()  # slots whose tokens are followed
        self.last_mask_ns = 0
        self.last_masked_rows = 0

    def start(self, start: SlotStart) -> None:
        """A sequence takes the slot, fresh or back from a preemption."""
        slot = Slot(start.sampling, start.min_tokens, tuple(start.end_token_ids))
        if slot.counts_tokens:
            slot.prompt_ids = frozenset(start.prompt)
            slot.output_counts.update(start.outputs)
        if start.grammar is not None:
            if self._compiler is None:
                raise ValueError("a grammar was asked for, but the sampler has no compiler")
            slot.matcher = self._compiler.matcher(start.grammar)
        answer = start.outputs if slot.watch is None else slot.watch.replay(start.outputs)
        if slot.matcher is not None:
            slot.matcher.replay(answer)
        self._slots[start.slot] = slot
        self._followed.discard(start.slot)
        if slot.matcher is not None or slot.watch is not None:
            self._followed.add(start.slot)

    def stop(self, slot: int) -> None:
        self._slots.pop(slot, None)
        self._followed.discard(slot)

    def all_just_argmax(self, rows: Sequence[DecodeRow | PrefillChunk]) -> bool:
        """Whether each row's next token is the likeliest, and nothing else is asked for."""
        return all(self._slots[row.slot].is_just_argmax(row.output_index) for row in rows)

    def draws(self, rows: Sequence[DecodeRow | PrefillChunk]) -> Draws | None:
        """What a device needs to choose a token for each row by itself; None where a row wants
        more than that."""
        slots = [self._slots[row.slot] for row in rows]
        output_indices = [row.output_index for row in rows]
        if not all(
            s.is_just_drawn(output_index)
            for s, output_index in zip(slots, output_indices, strict=True)
        ):
            return None
        uniforms = [
            uniform(s.params.seed, output_index)
            for s, output_index in zip(slots, output_indices, strict=True)
        ]
        return draws_of([s.params for s in slots], uniforms, [s.is_greedy for s in slots])

    @torch.inference_mode()
    def sample(
        self, rows: Sequence[DecodeRow | PrefillChunk], logits: torch.Tensor
    ) -> tuple[tuple[Sample, ...], ...]:
        """The tokens of each row from float32 logits [positions, vocab], where a row has a
        position for its input and one for each draft, in order.

        Rows with drafts are sampled position by position for as long as the sample is the
        draft's token: exactly the tokens that the row would have got one step at a time.
        """
        self.last_mask_ns = self.last_masked_rows = 0
        if len(rows) == len(logits):  # no row has drafts
            slots = [self._slots[row.slot] for row in rows]
            samples_of_rows = self._round(slots, [row.output_index for row in rows], logits)
            return tuple((sample,) for sample in samples_of_rows)
        drafts = [row.drafts if isinstance(row, DecodeRow) else () for row in rows]
        first = list(accumulate((1 + len(draft) for draft in drafts), initial=0))[:-1]
        samples: list[list[Sample]] = [[] for _ in rows]
        active, depth = list(range(len(rows))), 0
        while active:
            slots = [self._slots[rows[index].slot] for index in active]
            output_indices = [rows[index].output_index + depth for index in active]
            positions = [first[index] + depth for index in active]
            whole = len(positions) == len(logits)
            picked = logits if whole else logits[torch.tensor(positions, device=logits.device)]
            for index, sample in zip(
                active, self._round(slots, output_indices, picked), strict=True
            ):
                samples[index].append(sample)
            active = [i for i in active if _was_right(samples[i], drafts[i], depth)]
            depth += 1
        return tuple(tuple(row) for row in samples)

    def _round(
        self, slots: Sequence[Slot], output_indices: Sequence[int], logits: torch.Tensor
    ) -> tuple[Sample, ...]:
        """One token a row; `output_indices` say which output of its sequence each token is."""
        if all(
            slot.is_just_argmax(output_index)
            for slot, output_index in zip(slots, output_indices, strict=True)
        ):
            return tuple(map(Sample, _likeliest(logits)))
        raw = logits
        logits = self._mask(slots, logits)
        if any(
            s.alters_logits(output_index)
            for s, output_index in zip(slots, output_indices, strict=True)
        ):
            logits = logits.clone() if logits is raw else logits
            for index, (slot, output_index) in enumerate(zip(slots, output_indices, strict=True)):
                self._alter(logits[index], slot, output_index)
        tokens = self._choose(slots, output_indices, logits)
        for index, slot in enumerate(slots):
            if slot.counts_tokens:
                slot.output_counts[tokens[index]] += 1
        self._follow(slots, tokens)
        return _samples(tokens, [slot.params.logprobs for slot in slots], raw)

    def _choose(
        self, slots: Sequence[Slot], output_indices: Sequence[int], logits: torch.Tensor
    ) -> list[int]:
        """The likeliest token of greedy rows, a drawn one of all others."""
        drawn = [index for index, slot in enumerate(slots) if not slot.is_greedy]
        if len(drawn) == len(slots):
            picked = logits
        else:
            tokens = _likeliest(logits)
            if not drawn:
                return tokens
            picked = logits[torch.tensor(drawn, device=logits.device)]
        params = [slots[index].params for index in drawn]
        uniforms = [uniform(slots[index].params.seed, output_indices[index]) for index in drawn]
        found = draw_rows(picked, params, uniforms)
        if len(drawn) == len(slots):
            return found
        for index, token in zip(drawn, found, strict=True):
            tokens[index] = token
        return tokens

    def _mask(self, slots: Sequence[Slot], logits: torch.Tensor) -> torch.Tensor:
        """Logits with what grammars forbid at minus infinity, in a copy if there are any."""
        found = [(index, matcher) for index, slot in enumerate(slots)
                 if (matcher := slot.active_matcher) is not None]  # fmt: skip
        if not found:
            return logits
        indices = [index for index, _ in found]
        self.last_masked_rows += len(indices)
        begin_ns = self._now_ns()
        masks = self._masks.fill([matcher for _, matcher in found])
        forbidden = self._masks.forbidden(masks, logits.device)
        for row, index in enumerate(indices):
            watch = slots[index].watch
            if watch is not None and watch.place is Place.OPENING:
                forbidden[row, watch.begin_id] = False
        if len(indices) == len(slots):
            logits = logits.masked_fill(forbidden, -torch.inf)
        else:
            picked = torch.tensor(indices, device=logits.device)
            constrained = logits[picked].masked_fill_(forbidden, -torch.inf)
            logits = logits.index_copy(0, picked, constrained)
        self.last_mask_ns += self._now_ns() - begin_ns
        return logits

    def _follow(self, slots: Sequence[Slot], tokens: Sequence[int]) -> None:
        """Grammars and reasonings go on past the drawn tokens."""
        if not self._followed:
            return
        followed = [
            (slot, token)
            for slot, token in zip(slots, tokens, strict=True)
            if slot.matcher is not None or slot.watch is not None
        ]
        if not followed:
            return
        begin_ns = self._now_ns()
        for slot, token in followed:
            slot.accept(token)
        self.last_mask_ns += self._now_ns() - begin_ns

    def _now_ns(self) -> int:
        return self._clock.now_ns() if self._clock is not None else 0

    def _alter(self, logits: torch.Tensor, slot: Slot, output_index: int) -> None:
        """Bias, minimum length, penalties and the end of the reasoning, in place on one row.

        The end tokens are held off while a grammar still waits for the reasoning to end; they are
        not where a grammar allows nothing else.
        """
        params = slot.params
        if slot.bias is not None:
            biased, biases = slot.bias
            logits.index_add_(0, biased.to(logits.device), biases.to(logits))
        if slot.holds_ends(output_index):
            ends = list(slot.end_token_ids)
            held = logits[ends]
            logits[ends] = -torch.inf
            if slot.active_matcher is not None and not torch.isfinite(logits).any():
                logits[ends] = held
        if params.repetition_penalty != 1.0:
            seen = sorted(slot.prompt_ids | slot.output_counts.keys())
            index = torch.tensor(seen, device=logits.device)
            picked = logits[index]
            penalty = max(params.repetition_penalty, _LEAST_PENALTY)
            logits[index] = torch.where(picked > 0, picked / penalty, picked * penalty)
        if (params.presence_penalty or params.frequency_penalty) and slot.output_counts:
            ids, counts = zip(*slot.output_counts.items(), strict=True)
            weights = torch.tensor(counts, dtype=logits.dtype, device=logits.device)
            penalties = params.frequency_penalty * weights + params.presence_penalty
            logits[torch.tensor(ids, device=logits.device)] -= penalties
        forced = None if slot.watch is None else slot.watch.forced_id
        if forced is not None:
            logits.fill_(-torch.inf)
            logits[forced] = 0.0


def _likeliest(logits: torch.Tensor) -> list[int]:
    """The first of the highest in each row. On a CPU numpy finds it sooner than torch."""
    tokens: list[int]
    if logits.device.type == "cpu":
        tokens = logits.numpy().argmax(axis=-1).tolist()
    else:
        tokens = logits.argmax(dim=-1).tolist()
    return tokens


def _was_right(samples: Sequence[Sample], drafts: Sequence[int], depth: int) -> bool:
    """Whether the sample at `depth` is what was guessed there."""
    return depth < len(drafts) and samples[depth].token_id == drafts[depth]


def _samples(
    tokens: Sequence[int], wanted: Sequence[int | None], raw: torch.Tensor
) -> tuple[Sample, ...]:
    """The tokens, each with as many log-probabilities as were asked for."""
    found = [Sample(token) for token in tokens]
    asked = [row for row, count in enumerate(wanted) if count is not None]
    for first in range(0, len(asked), _SCORED_ROWS):
        rows = asked[first : first + _SCORED_ROWS]
        of_rows = [wanted[row] or 0 for row in rows]
        chosen, values, ids = _scores(raw, rows, [tokens[row] for row in rows], max(of_rows))
        for place, (row, count) in enumerate(zip(rows, of_rows, strict=True)):
            likeliest = zip(ids[place][:count], values[place][:count], strict=True)
            top = tuple(TokenLogprob(token, value) for token, value in likeliest)
            found[row] = Sample(tokens[row], chosen[place], top)
    return tuple(found)


def _scores(
    raw: torch.Tensor, rows: list[int], tokens: list[int], most: int
) -> tuple[list[float], list[list[float]], list[list[int]]]:
    """Log-probabilities of one token a row, and the `most` likeliest with theirs, in one piece: a
    device is not waited for once a row."""
    picked = raw if len(rows) == len(raw) else raw[on_device(rows, torch.int64, raw.device)]
    logprobs = torch.log_softmax(picked, dim=-1)
    own = on_device(tokens, torch.int64, raw.device)[:, None]
    values, ids = logprobs.topk(most)
    found = torch.cat((logprobs.gather(1, own).double(), values.double(), ids.double()), dim=-1)
    numbers = found.tolist()
    return (
        [row[0] for row in numbers],
        [row[1 : 1 + most] for row in numbers],
        [list(map(int, row[1 + most :])) for row in numbers],
    )
