"""Many runs, here or on a batch system, and what is done with a trained network."""
