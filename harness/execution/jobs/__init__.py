"""Many runs, here or on a batch system, and the kinds of runs that are no training themselves."""
