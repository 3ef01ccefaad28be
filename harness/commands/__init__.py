"""One module a subcommand of `lagbench`, each with ``configure(parser)`` and ``run(arguments)``."""
