"""How large a model's matrices are in the form that a back end holds them in, by headers alone."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from service.device.models.tensors import EMBEDDING, tensor_names, tensor_shape
from service.device.models.weight_source import WeightSource
from service.device.quantization.kept_kinds import KeptForm, KeptKind
from service.device.quantization.kept_matrix import kept_form


@dataclass(frozen=True, slots=True)
class KeptSummary:
    """`weight_bytes` is a weight's mean size over all matrices that a step reads, `forms` those of
    kept matrices by name, `widened` the kinds of which there is no product."""

    weight_bytes: float
    forms: dict[str, KeptForm]
    widened: frozenset[KeptKind]

    @property
    def label(self) -> str | None:
        """For people and for facts; None where the checkpoint has plain weights only."""
        kept = {form.kind for form in self.forms.values()}
        parts = ((kept, "kept"), (self.widened, "widened"))
        told = [f"{', '.join(sorted(kinds))} weights {how}" for kinds, how in parts if kinds]
        return "; ".join(told) or None


def summarize(source: WeightSource, kinds: Collection[KeptKind], plain_bytes: float) -> KeptSummary:
    """Of a back end that keeps `kinds` and holds other weights in `plain_bytes` each."""
    spec = source.spec
    forms: dict[str, KeptForm] = {}
    widened: set[KeptKind] = set()
    weights, total_bytes = 0, 0.0
    for name in tensor_names(spec):
        shape = tensor_shape(spec, name)
        if len(shape) < 2:
            continue
        form = kept_form(source, name)
        if form is not None and form.kind in kinds:
            forms[name] = form
        elif form is not None:
            widened.add(form.kind)
        if name == EMBEDDING and not spec.tied_embeddings:
            continue  # a step reads some of its rows
        count = math.prod(shape)
        weights += count
        total_bytes += count * (forms[name].bits / 8 if name in forms else plain_bytes)
    return KeptSummary(total_bytes / weights, forms, frozenset(widened))
