"""The incident report: one HTML file that opens offline.

    incident       the view model: all that the page says, as frozen structs
    build          the fold of a journal into an incident
    verdicts       what the diagnosis said, and when
    requests       the requests that were hit, by class and by tenant
    moments, load  what happened, and the load by the second
    culprits, exemplars   who took the time, and ten requests as waterfalls
    limits         the engine of the journal, and which limits were in force when
    runbook        the steps of a symptom's page
    charts, page   geometry of the pictures, and the page itself

The fold is pure: a journal gives the same incident on any machine.
"""
