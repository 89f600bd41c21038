"""What a sidecar counts of its connections, as metrics; part of the composition root."""

from __future__ import annotations

from collections import Counter

from service.attach.sidecar.attached import AttachView
from service.attach.sidecar.streams import Refusal
from service.attach.wire import Role
from telemetry.metrics.catalog import attach as catalog
from telemetry.metrics.metric import Metric

Families = list[tuple[Metric, list[tuple[dict[str, str], float]]]]


def attach_families(view: AttachView) -> Families:
    """The metrics of a sidecar's connections, with a sample for every value of a label, so that a
    rate is seen from the first one on."""
    roles = Counter(one.role for one in view.processes)
    return [
        (
            catalog.ATTACHED_PROCESSES,
            [({"role": role.value}, float(roles[role.value])) for role in Role],
        ),
        (
            catalog.ATTACH_REFUSED,
            [({"reason": why.value}, float(view.refused[why.value])) for why in Refusal],
        ),
        (
            catalog.ATTACH_SEQUENCES,
            [
                ({"seen": "front_end"}, float(view.joined)),
                ({"seen": "core_only"}, float(view.core_only)),
            ],
        ),
        (
            catalog.ATTACH_HOOKS_OFF,
            [({"role": role.value}, float(view.turned_off[role.value])) for role in Role],
        ),
    ]
