"""``report.html``: the report as one page that needs no network and no other file.

``page`` has its sections, its script's data, and puts it together;
``page.css`` and ``page.js`` are its looks and its behaviour.
"""
