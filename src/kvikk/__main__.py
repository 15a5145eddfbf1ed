"""``python -m kvikk``: the same as the command ``kvikk``."""

from kvikk.cli.main import main

main()
