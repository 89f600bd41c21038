"""A symptom is complete with a real fault that makes it and a simulated twin of that.

Its page is checked in `test_runbooks`.
"""

from __future__ import annotations

import pytest

from diagnosis.symptoms import Symptom
from lab.drills.registry import mechanisms_of
from lab.twins.registry import TWINS


@pytest.mark.parametrize("symptom", Symptom)
def test_every_symptom_has_a_drill(symptom: Symptom) -> None:
    """What cannot be made cannot be shown to be found."""
    assert mechanisms_of(symptom.value)


@pytest.mark.parametrize("symptom", Symptom)
def test_every_symptom_has_a_twin(symptom: Symptom) -> None:
    """What takes minutes on a server takes seconds in virtual time, in every test run."""
    assert TWINS[symptom.value]
