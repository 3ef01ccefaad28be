"""When each worker reads, computes, waits and sends: time only."""
