"""The command line with all its commands: the console script ``fedsgm``, and ``python -m fedsgm``."""

from fedsgm.cli import benchmark, federate, run, sweep, sweep_fit
from fedsgm.cli.app import app, main, script
from fedsgm.cli.compare import compare
from fedsgm.cli.doctor import doctor
from fedsgm.cli.fit import fit
from fedsgm.cli.predict import predict
from fedsgm.cli.report import report
from fedsgm.cli.show import show
from fedsgm.paper.command import reproduce

app.add_typer(run.commands, name="run")
app.add_typer(sweep.commands, name="sweep")
sweep.commands.command("fit")(sweep_fit.fit)
app.add_typer(federate.commands, name="federate")
app.add_typer(benchmark.commands, name="benchmark")
app.command("fit")(fit)
for _command in (predict, show, compare, report, reproduce, doctor):
    app.command()(_command)

__all__ = ["app", "main", "script"]

if __name__ == "__main__":
    script()
