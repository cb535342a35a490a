"""``python -m fedsgm`` is the command line."""

from fedsgm.cli import main

main()
