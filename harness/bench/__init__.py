"""Speed regressions: measurements of the benchmarks, compared with a committed baseline.

A benchmark in ``tests/benchmarks`` writes quantities to pytest-benchmark's ``extra_info``; the name
determines the comparison:

- ``ratio``, ``…_ratio``: time over a time measured in the same run; less is better;
- ``times_…``: speed relative to another measurement of the same run; more is better;
- ``counts``: a table of exact values (events, bytes, virtual time, hashes), to be equal.

Other quantities are not compared, nor are raw seconds, which depend on the machine.
"""

from __future__ import annotations
