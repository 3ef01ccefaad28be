"""What one says of a module, in ``[task]`` of a run file and in a call of `import lagbench`."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from typing import Any

from torch import nn

from harness.base.errors import UserError
from harness.base.settings import Spec, setting
from harness.modules.buffers import Rule
from harness.modules.gradient_rules import GradientRules
from harness.modules.network import OWN_LOSS
from harness.store import DEFAULT_STORE


@dataclass(frozen=True, kw_only=True)
class ModuleTable(Spec):
    """Keys of ``[task]`` with ``is = "module"``: a user's module, its loss and its data.

    In a run file, names have the form ``my_module:name``; the module is beside the run file or
    installed. In a call of `import lagbench`, these are the objects.

    Args:
        model: a `torch.nn.Module`, from whose parameters every run starts, in its current mode; or
            a function that makes one, called for each seed with its random numbers. Parameters with
            ``requires_grad`` are trained and have one precision; tied ones count once.
        loss: a function of outputs and targets: one number for a minibatch; ``"model"`` for the
            ``loss`` of the model's outputs. Outputs may be of any kind; of an object or a dict the
            built-in metrics take ``logits``.
        data: training data: a pair of arrays, a map-style dataset, a `DataLoader`, or a function
            that returns one, in a call also with the seed as its argument. Several inputs are a
            tuple, ``((X, M), y)``, or a dict by the names of ``forward``; in a dict ``labels`` (or
            ``label``) are the targets, which ``forward`` receives too if it has that parameter;
            without them the loss gets the dict, and so does a ``forward`` with none of its names. A
            dataset that draws from the generators of torch, numpy or `random` is read again in each
            pass, seeded by run, pass and example. A `DataLoader` gives its data set in the order of
            its batches, each example through its ``collate_fn``, which may not mix them.
        test: test data of the same kinds, reported on and used for nothing else.
        dev: development data of the same kinds, or the share of the training data held out for it:
            they decide on learning rates and on times to a target.
        metric: ``"error"``, ``"accuracy"``, ``"mse"``, ``"mae"``, ``"loss"``, or a function of
            outputs and targets, one number for the whole set; of several, in a list or a dict by
            name, the first decides. A
            function's outputs are those of 1,024 examples at a time, joined, or all in one call if
            they depend on one another.
        maximise: whether more of the metric is better; by default, of ``"accuracy"`` alone.
        share: whether the metric is a share, from 0 to 1; by default, ``"error"`` and
            ``"accuracy"`` are.
        charge_for: workload that is timed in place of the trained module's: another module, which
            takes the same examples; ``"cluster"`` for the ``[workload]`` of the cluster's file; in
            a call also a `Workload`.
        step_seconds: seconds of a step on every device; or ``"count"``: the operators of the step,
            its memory traffic and its arithmetic, for each of which a device has a rate.
        minibatch: examples in a worker's minibatch.
        partition: the workers' data: ``"iid"`` (asynchronous algorithms hand out one shuffled
            sequence, rounds deal equal parts), ``"by_label"`` (equal shares in the order of
            classes), ``"dirichlet:ALPHA"`` (in a call `dirichlet`), or a function of targets,
            number of workers and random generator, to each one's rows of the training data, each
            example in one of them. A share smaller than a minibatch is repeated within it.
        buffers: buffers of trained models, where training changes some, as BatchNorm's running
            statistics, of which each worker has its own: ``"mean"`` over workers, those of the
            ``"first"`` one, or ``"local"``: each worker's own, and scores are means over workers.
        autocast: ``"bfloat16"``: `torch.autocast` to it in forward passes and losses of training.
    """

    model: Any
    loss: Any
    data: Any
    test: Any = None
    dev: Any | float = 0.1
    metric: Any = None
    maximise: bool | None = None
    share: bool | None = None
    charge_for: Any = None
    step_seconds: Any | float = "count"
    minibatch: int = setting(32, at_least=1)
    partition: Any = "iid"
    buffers: Rule = "mean"
    autocast: Any = None


@dataclass(frozen=True, kw_only=True)
class Settings(GradientRules, ModuleTable):
    """Arguments of a call of `import lagbench`, with those of `ModuleTable` and `GradientRules`.

    Args:
        passes: passes over the training data, the same for every number of workers.
        evaluations: evaluations on the development data in each pass.
        seeds: number of seeds, or a list of them; a seed sets data order, timing and initial
            parameters (of a model that is made by a function).
        guess: the first learning rate that is tried.
        optimizer: makes a worker's steps from its gradients: ``"sgd"``, ``"momentum"``,
            ``"nesterov"``, ``"adam"``, ``"adamw"``, ``"muon"``, ``"ngsgd"`` (natural gradient of
            linear and convolutional layers), a `LocalOptimizer`, a `NaturalGradient`, or one of
            ``torch.optim`` as an object, a class or a function that makes one. Each worker has its
            own state; ``"sync"`` has one. None for the algorithm's own, which is mostly ``"sgd"``.
            Further names: ``"adagrad"``, ``"rmsprop"``, ``"nadam"``, ``"radam"``. A torch object
            keeps its settings and groups of parameters, whose rates keep their ratio to the first
            one's, the rate that is trained and searched; parameters without gradient in a step are
            skipped, as torch does. Those that are not element-wise and linear in the rate (LBFGS,
            Rprop) are refused.
        schedule: learning rate over training: ``"cosine"``, ``"linear"`` (both with a warm-up),
            ``"warmup"``, ``"steps"``, ``"constant"``; a function from the share of training done,
            in [0, 1), to a factor; or a `Schedule`, whose rate is replaced, e.g.
            ``lagbench.Cosine(1.0, warmup=0.1)``.
        target: value of the metric for times to target; None for 95% of the way from before
            training to the best end with the fewest workers (`compare`), or none (`train`).
        device: device that trains here: ``"cpu"``, ``"cuda"`` or ``"auto"``.
        store: folder of the store.
        jobs: runs at a time: this process and others beside it, or jobs of ``submit``.
        submit: executor of the runs in place of processes here: ``"slurm"``, ``"local"``,
            ``"dask"``, ``"ray"``, or ``"MODULE:FUNCTION"``, a function that returns an executor.
        runs_per_job: runs that a job of ``submit`` executes, one after the other.
    """

    passes: int = setting(5, at_least=1)
    evaluations: int = setting(10, at_least=1)
    seeds: Any = 3
    guess: float = setting(0.1, above=0.0)
    optimizer: Any = None
    schedule: Any = "constant"
    target: float | None = setting(None)
    device: Any = "cpu"
    store: Any = DEFAULT_STORE
    jobs: int = setting(1, at_least=1)
    submit: str | None = None
    runs_per_job: int = setting(1, at_least=1)


USUAL: dict[str, Any] = {
    entry.name: entry.default for entry in fields(Settings) if entry.default is not MISSING
}
"""Default of each setting, as declared in `Settings`."""


def check_module(table: ModuleTable) -> None:
    """Reject a model or loss that are none.

    Raises:
        UserError: see there.
    """
    model, loss = table.model, table.loss
    if not callable(model):
        advice = "allowed: a torch.nn.Module, or a function that makes one"
        raise UserError(f"model: {type(model).__name__}; {advice}")
    if isinstance(loss, type):
        name = loss.__name__
        raise UserError(f"loss: {name} is a class; allowed: an object of it, e.g. {name}()")
    has_parameters = isinstance(loss, nn.Module) and next(loss.parameters(), None) is not None
    if has_parameters and not isinstance(model, nn.Module):
        raise UserError("model, loss: the loss is a module; allowed: the model comes first")
    if not (callable(loss) or loss == OWN_LOSS):
        advice = "allowed: a function, or 'model' for its own"
        raise UserError(f"loss: a {type(loss).__name__}; {advice}")
