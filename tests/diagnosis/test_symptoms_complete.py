"""A symptom is complete with a real fault that makes it and a simulated twin of that.

Its page is checked in `test_runbooks`, what is said of its twin in `test_classifier`.
"""

from __future__ import annotations

import pytest

from diagnosis.symptoms import Symptom
from lab.drills.injection import Injection
from lab.drills.mechanism import Mechanism, Need
from lab.drills.registry import mechanisms_of
from lab.twins.registry import TWINS, build_clean
from tests.lab.test_drills import scene_of
from tests.support.worlds.twin_cases import SEED, twin


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


@pytest.mark.long
@pytest.mark.parametrize("symptom", Symptom)
def test_every_symptom_has_a_twin_that_the_fault_makes_another_run(symptom: Symptom) -> None:
    """What takes minutes on a server takes seconds in virtual time, in every test run."""
    name = symptom.value
    one = twin(name, TWINS[name][0])

    assert one.onset_ns is not None
    assert one.facts != build_clean(name, SEED)


@pytest.mark.parametrize("name", sorted(set(TWINS) - {symptom.value for symptom in Symptom}))
def test_the_other_twins_are_healthy(name: str) -> None:
    one = twin(name, TWINS[name][0])

    assert one.onset_ns is None
    assert one.facts == build_clean(name, SEED)
