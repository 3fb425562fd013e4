"""``python -m palmette`` is the ``palmette`` command."""

from palmette.cli import main

raise SystemExit(main())
