"""``python -m lagbench``: the command ``lagbench``."""

from lagbench_start import main

raise SystemExit(main())
