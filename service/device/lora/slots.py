"""Which adapter the sequence of each slot of an executor has."""

from __future__ import annotations

from service.engine.plan import Plan


class SlotAdapters:
    """Follows the plans in the order in which they are launched; only slots with an adapter are in
    `numbers`, so it is empty where nobody uses one."""

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}

    def follow(self, plan: Plan) -> None:
        for slot in plan.stopped_slots:
            self.numbers.pop(slot, None)
        for start in plan.started:
            self.numbers.pop(start.slot, None)
            if start.adapter:
                self.numbers[start.slot] = start.adapter
