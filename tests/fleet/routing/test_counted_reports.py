"""What a report counts of a router's requests never goes back."""

from __future__ import annotations

from service.fleet.routing.reports import Reported
from telemetry.facts.fleet.routing_records import RequestRouted
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


def test_a_request_with_choices_has_as_many_rows_and_one_prompt() -> None:
    """Before its engine reports it, and after: the engine counts sequences."""
    fleet = Fleet(1)
    view = fleet.router._book.by_name["e0"]
    fleet.send(fleet.request(sequences=4))
    assert (view.residents, view.rows, view.context_tokens) == (4, 4, 4 * 200)
    assert fleet.report("e0", running=4, context_tokens=800, own_sequences=4) is Reported.TAKEN
    assert (view.residents, view.context_tokens) == (4, 800)
    fleet.end("r1", "e0")
    assert (view.residents, view.rows, view.context_tokens) == (0, 0, 0)
    fleet.router.check()


def test_usual_outputs_are_those_of_one_sequence() -> None:
    one, four = Fleet(1), Fleet(1)
    one.send()
    four.send(four.request(sequences=4))
    for fleet, outputs in ((one, 50), (four, 200)):
        assert fleet.router.ended("r1", outputs, fleet.now_ns)

    assert one.router._book.mean_outputs == four.router._book.mean_outputs


def test_a_request_with_choices_takes_more_from_the_others() -> None:
    fleet = Fleet(1)
    fleet.report("e0", running=8, decode_rows=8, context_tokens=4000)
    single = fleet.router.choose(fleet.request(), fleet.now_ns)
    several = fleet.router.choose(fleet.request(sequences=4), fleet.now_ns)

    assert isinstance(single, RequestRouted)
    assert isinstance(several, RequestRouted)
    assert several.candidates[0].ttft_ns == single.candidates[0].ttft_ns
    assert several.candidates[0].harm_ns > single.candidates[0].harm_ns
    assert several.candidates[0].finish_ns > single.candidates[0].finish_ns
