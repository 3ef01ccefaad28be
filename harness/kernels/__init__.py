"""Compiled functions: how they are compiled, what tells them apart, where they are kept.

A *kernel* is a Python function that numba compiles (`compiling.kernel`). Its machine code is kept
for the next process (`cache`, `files`) under a name made of everything that it was compiled from
(`cache`). What a process compiles it may announce (`notice`). Settings of the simulator's
kernels are in `harness.simulator.events`, those of sums over graphs in
`harness.acoustics.compiling`.
"""
