"""Timing of distributed training: the instants at which workers read, compute, send and fold.

    cluster = load_cluster("reproductions/clusters/k20m-server.toml")
    workload = Workload.of_network((429, 2048, 2048, 10217), minibatch=256)
    simulation = Simulation(cluster, "parameter_server", workload, workers=4, seed=0)

    segment = simulation.advance(folds=1000)     # or seconds=60.0
    segment.folds.fold, segment.folds.time_s     # fold k makes version k + 1
    segment.contributions.worker                 # columns: fold, worker, read_version,
                                                 # read_time_s, first_step, steps
    segment.in_flight()                          # rows with fold IN_FLIGHT (−1): read in this
                                                 # segment or earlier, folded in a later one
    segment.folded().read_version, segment.staleness(), segment.lag_s()
    segment.lost(), segment.restarts             # losses by faults: rows with fold LOST (−2),
                                                 # and folds undone by a restart
    segment.pieces                               # folds of each shard, for a server in shards

    simulation.advance(folds=500, drain=True)    # ends with all workers idle
    simulation.pause(30.0, "search")             # allowed when drained; costs virtual time
    simulation.change(workload=other)            # holds for contributions read from now on
    saved = simulation.state()                   # dict of numpy arrays
    simulation = Simulation.restore(cluster, "parameter_server", saved, workers=4, seed=0)

    whole = concat([segment, …])                 # as if it had been one segment
    save_timeline(whole, "run.parquet")          # harness.simulator.timeline_file; gives
    whole = load_timeline("run.parquet")         # whole.sha256(), which loading checks

    Simulation(cluster, Averaging(every=10, collective="ring"), workload, workers=32)
                                                 # a fold holds a contribution of every worker

    segment = simulation.advance(folds=10**6)    # of a protocol with questions: ends where the next
    open = simulation.asked()                    # event needs an answer; in speech, the number of
    simulation.answer(open.worker, kept)         # frames kept of the utterances in decoders

`compute_seconds` is the duration of one minibatch on a worker's device (for pricing a rate
search or an evaluation), `bare_throughput_per_s` the minibatches per second of one device
without a server. Nothing here imports torch.
"""
# pyright: reportUnusedImport=false

from harness.simulator.cluster import Cluster, Device, Fault, WorkerGroup, Workload, load_cluster
from harness.simulator.network import Level, Network
from harness.simulator.protocols.averaging import Averaging
from harness.simulator.protocols.parameter_server import ParameterServer
from harness.simulator.simulation import Simulation
