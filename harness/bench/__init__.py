"""Regressions of speed: what benchmarks measured, beside a committed baseline.

A benchmark in ``tests/benchmarks`` leaves quantities in pytest-benchmark's ``extra_info``; their
names say how they are read:

- ``ratio``, ``…_ratio``: time over a time measured in the same run; less is better;
- ``times_…``: how many times as fast as something else in the same run; more is better;
- ``counts``: a table of exact values (events, bytes, virtual time, hashes), to be equal.

Anything else is for people. Raw seconds are compared with nothing: they are the machine's.
"""

from __future__ import annotations
