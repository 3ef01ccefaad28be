"""Statistics, verdicts and the results file; nothing here trains or draws.

``statistics`` turns values over seeds into 95% intervals, ``utterances`` does so
for errors over seeds and test utterances, ``claims`` turns intervals into verdicts,
``parts`` judges whole claims and computes the power of their design, ``builders`` turns
finished runs into exhibits and claims, and ``results`` defines the file that a
reproduction writes and a report reads.
"""
