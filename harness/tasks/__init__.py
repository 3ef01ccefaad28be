"""The contract of what is trained, and the order in which its data are seen."""
