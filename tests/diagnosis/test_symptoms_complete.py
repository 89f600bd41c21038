"""A symptom is complete with a real fault that makes it, and a simulated twin of that.

Its page is checked in `test_runbooks`, its twin in `test_twins`, what is said of that in
`test_classifier`.
"""

from __future__ import annotations

import pytest

from diagnosis.symptoms import Symptom
from lab.drills.injection import Injection
from lab.drills.mechanism import Mechanism, Need
from lab.drills.registry import mechanisms_of
from tests.lab.test_drills import scene_of


def does_something(mechanism: Mechanism) -> bool:
    """It has requests of its own, acts on the server, or gives it worse flags or a worse model."""
    scene = scene_of(mechanism.symptom, mechanism.name)
    if mechanism.bad_flags is not None:
        return bool(mechanism.bad_flags(Need(blocks_total=1000), scene.intensity))
    return (
        mechanism.broken_model is not None
        or type(mechanism.injection(scene)) is not Injection
        or mechanism.traffic(scene) != mechanism.without_fault().traffic(scene)
    )


@pytest.mark.parametrize("symptom", Symptom)
def test_every_symptom_has_drills_and_each_of_them_does_something(symptom: Symptom) -> None:
    """What cannot be made cannot be shown to be found."""
    drills = mechanisms_of(symptom.value)

    assert drills
    assert [one.name for one in drills if not does_something(one)] == []
