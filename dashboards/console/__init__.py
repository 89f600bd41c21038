"""The web console: what an on-call person opens in a browser.

    model      what is shown, without any drawing: moments, incidents, requests, heatmaps
    markup     pure functions from that to HTML
    web        the process: one poller for all tabs, the pages, who may call

Only `web` knows NiceGUI, whose wheel brings every script and style that a page loads.
"""
