"""What a report counts of a router's requests never goes back."""

from __future__ import annotations

from service.fleet.routing.reports import ReportStatus
from telemetry.facts.fleet.routing_records import RequestRouted
from tests.fleet.routing.walks import Fleet


def test_a_report_that_goes_back_is_not_usable_and_requests_end() -> None:
    fleet = Fleet(1)
    fleet.send()
    fleet.send()
    fleet.end("r1", "e0")
    assert fleet.report("e0") is ReportStatus.TAKEN

    assert fleet.report("e0", received=1) is ReportStatus.NOT_USABLE
    assert fleet.report("e0", ended=0) is ReportStatus.NOT_USABLE
    fleet.end("r2", "e0")
    assert fleet.report("e0") is ReportStatus.TAKEN
    fleet.router.check()


def test_a_report_that_counts_too_much_does_not_shut_out_those_after_it() -> None:
    fleet = Fleet(1)
    fleet.send()
    assert fleet.report("e0", received=1000, ended=1000) is ReportStatus.TAKEN
    fleet.send()

    assert fleet.report("e0", received=1) is ReportStatus.TAKEN
    fleet.end("r2", "e0")
    fleet.end("r1", "e0")
    assert fleet.report("e0") is ReportStatus.TAKEN
    fleet.router.check()


def test_a_request_with_choices_has_as_many_rows_and_one_prompt() -> None:
    """Before its engine reports it, and after: the engine counts sequences."""
    fleet = Fleet(1)
    view = fleet.router._book.by_name["e0"]
    fleet.send(fleet.request(sequences=4))
    assert (view.residents, view.rows, view.context_tokens) == (4, 4, 4 * 200)
    assert fleet.report("e0", running=4, context_tokens=800, own_sequences=4) is ReportStatus.TAKEN
    assert (view.residents, view.context_tokens) == (4, 800)
    fleet.end("r1", "e0")
    assert (view.residents, view.rows, view.context_tokens) == (0, 0, 0)
    fleet.router.check()


def test_a_choice_that_ends_takes_its_row_with_it() -> None:
    """Whether its end or a report that contains its request comes first; the prompt's blocks stay
    until the last one ends."""
    fleet = Fleet(1)
    view = fleet.router._book.by_name["e0"]
    fleet.send(fleet.request(sequences=4))
    fleet.end_choice("r1", "e0")
    assert (view.residents, view.context_tokens) == (3, 3 * 200)
    fleet.report("e0", running=4, context_tokens=800, choices_ended=0, blocks_used=20)
    assert (view.residents, view.context_tokens, view.free_blocks) == (3, 600, 4076)
    fleet.end_choice("r1", "e0")
    assert (view.residents, view.context_tokens, view.free_blocks) == (2, 400, 4076)
    fleet.report("e0", running=2, context_tokens=400)
    assert (view.residents, view.context_tokens) == (2, 400)
    fleet.router.check()


def test_the_last_of_several_choices_takes_only_its_own_row() -> None:
    """Others decode there that this router has not sent."""
    fleet = Fleet(1)
    view = fleet.router._book.by_name["e0"]
    fleet.send(fleet.request(sequences=4))
    for _ in range(3):
        fleet.end_choice("r1", "e0")
    fleet.report("e0", running=9, context_tokens=2000)
    fleet.end("r1", "e0")

    assert (view.residents, view.context_tokens) == (8, 1800)
    assert fleet.report("e0", running=8, context_tokens=1800) is ReportStatus.TAKEN
    assert (view.residents, view.context_tokens) == (8, 1800)


def test_a_report_of_an_earlier_release_contains_the_choices_that_ended_before_it() -> None:
    fleet = Fleet(1)
    view = fleet.router._book.by_name["e0"]
    fleet.send(fleet.request(sequences=4))
    fleet.end_choice("r1", "e0")
    fleet.report("e0", running=3, context_tokens=600, choices_ended=None)

    assert (view.residents, view.context_tokens) == (3, 600)


def test_a_report_that_goes_back_in_choices_is_not_usable() -> None:
    fleet = Fleet(1)
    fleet.send(fleet.request(sequences=4))
    fleet.end_choice("r1", "e0")
    fleet.report("e0", running=3)

    assert fleet.report("e0", choices_ended=0) is ReportStatus.NOT_USABLE
    assert fleet.report("e0", choices_ended=-1) is ReportStatus.NOT_USABLE


def test_a_request_without_further_sequences_has_no_choice_that_ends() -> None:
    fleet = Fleet(1)
    fleet.send()

    assert not fleet.router.choice_ended("r1", fleet.now_ns)
    assert not fleet.router.choice_ended("r2", fleet.now_ns)


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
