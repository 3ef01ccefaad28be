"""Many runs: order, progress, and the processes or batch systems that carry them."""
