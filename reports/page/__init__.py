"""``report.html``: the report as one page that needs no network and no other file.

``page`` puts it together, with what its script works with; ``parts`` are its sections;
``page.css`` and ``page.js`` are its looks and its behaviour.
"""
