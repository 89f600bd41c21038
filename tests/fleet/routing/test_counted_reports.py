"""What a report counts of a router's requests never goes back."""

from __future__ import annotations

from service.fleet.routing.reports import Reported
from tests.fleet.routing.walks import Fleet


def test_a_report_that_goes_back_is_not_usable_and_requests_end() -> None:
    fleet = Fleet(1)
    fleet.send()
    fleet.send()
    fleet.end("r1", "e0")
    assert fleet.report("e0") is Reported.TAKEN

    assert fleet.report("e0", received=1) is Reported.NOT_USABLE
    assert fleet.report("e0", ended=0) is Reported.NOT_USABLE
    fleet.end("r2", "e0")
    assert fleet.report("e0") is Reported.TAKEN
    fleet.router.check()


def test_a_report_that_counts_too_much_does_not_shut_out_those_after_it() -> None:
    fleet = Fleet(1)
    fleet.send()
    assert fleet.report("e0", received=1000, ended=1000) is Reported.TAKEN
    fleet.send()

    assert fleet.report("e0", received=1) is Reported.TAKEN
    fleet.end("r2", "e0")
    fleet.end("r1", "e0")
    assert fleet.report("e0") is Reported.TAKEN
    fleet.router.check()
