"""Names of arguments and settings by the names that other libraries have for them."""

from __future__ import annotations

from collections.abc import Mapping

HERE: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("lr", "learning_rate", "learning_rates", "rate", "rates"), ("rate", "rates", "guess")
    ),
    **dict.fromkeys(("epochs", "num_epochs", "n_epochs", "max_epochs"), ("passes",)),
    **dict.fromkeys(("batch_size", "batch", "bs", "mini_batch"), ("minibatch",)),
    **dict.fromkeys(("n_jobs", "num_jobs", "processes"), ("jobs",)),
    **dict.fromkeys(("cluster", "machine", "machines", "clusters"), ("cluster", "machines")),
    **dict.fromkeys(("num_workers", "n_workers", "nodes", "world_size"), ("workers",)),
    **dict.fromkeys(("algorithm", "algorithms", "algo", "method"), ("algorithm", "algorithms")),
    **dict.fromkeys(("val", "valid", "validation", "val_data", "eval_data"), ("dev",)),
    **dict.fromkeys(("seed", "n_seeds", "random_state"), ("seeds",)),
    **dict.fromkeys(("lr_scheduler", "scheduler"), ("schedule",)),
    **dict.fromkeys(("loss_fn", "criterion"), ("loss",)),
    **dict.fromkeys(("metrics", "scoring"), ("metric",)),
    **dict.fromkeys(("opt", "optim"), ("optimizer",)),
    **dict.fromkeys(("clip_grad", "max_norm", "max_grad_norm", "gradient_clip"), ("clip",)),
    **dict.fromkeys(("decay", "wd"), ("weight_decay",)),
    **dict.fromkeys(("accumulation_steps", "gradient_accumulation_steps"), ("accumulate",)),
    **dict.fromkeys(("momentum", "nesterov", "betas"), ("optimizer",)),
    **dict.fromkeys(("gpu", "cuda", "use_cuda", "accelerator"), ("device",)),
    **dict.fromkeys(("max_steps", "steps", "num_steps", "iterations"), ("passes",)),
    **dict.fromkeys(("dataset", "train_data", "dataloader", "loader"), ("data",)),
}
"""Names of arguments and settings here, by names of other libraries or of another call; of those
that a call or file has, the first is meant."""
