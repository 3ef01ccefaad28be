"""Compiled functions: compilation, identity, and an on-disk cache of machine code.

A *kernel* is a Python function that numba compiles (`compiling.kernel`). `cache` stores its machine
code for later processes, in a file named after a digest of everything it was compiled from.
`notice` reports compilations to the user. The settings of the simulator's kernels are in
`harness.simulator.events`, those of sums over graphs in `harness.acoustics.compiling`.
"""
