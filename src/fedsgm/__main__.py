"""The command line with all its commands: the console script ``fedsgm``, and ``python -m fedsgm``."""

from fedsgm.cli.app import app, main
from fedsgm.paper.command import reproduce

app.command()(reproduce)

if __name__ == "__main__":
    main()
