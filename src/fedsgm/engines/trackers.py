"""Runs in experiment trackers, each through its own library: callbacks of a few lines."""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import time
from pathlib import Path
from typing import Any

from fedsgm.base.errors import SettingError
from fedsgm.engines.callbacks import News

_BATCH = 1000  # numbers that MLflow takes at once
_TOLD = ("algorithm", "clients", "parameters", "seeds", "evaluate_every")  # the settings that are logged


def _needed(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise SettingError(f"{extra} is not installed; pip install 'fedsgm[{extra}]'") from None


def _numbers(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in ("seed", "round")}


class TensorBoard:
    """Every number of every round as a scalar of TensorBoard (extra ``tensorboard``), a folder for each seed."""

    def __init__(self, folder: str | Path, name: str = "") -> None:
        self._make = _needed("tensorboard.summary", "tensorboard").Writer
        self.folder = Path(folder) / name
        self._writers: dict[int, Any] = {}

    def __call__(self, news: News) -> None:
        for row in news.rows():
            seed = row["seed"]
            if seed not in self._writers:
                self._writers[seed] = self._make(str(self.folder / f"seed-{seed}"))
            for name, value in _numbers(row).items():
                self._writers[seed].add_scalar(name, value, row["round"])
        for writer in self._writers.values():
            writer.flush()
        if news.result is not None or news.error is not None:
            for writer in self._writers.values():
                writer.close()
            self._writers = {}


class MLflow:
    """Every number of every round as a metric of an MLflow run (extra ``mlflow``), and the settings as its parameters.

    Runs go where MLFLOW_TRACKING_URI says, or the library's default, in this experiment. Of several seeds, metrics have
    the seed before their name, ``seed-1/objective``. What MLflow allows in no name is an underscore.
    """

    def __init__(self, experiment: str = "fedsgm", name: str = "") -> None:
        self._mlflow = _needed("mlflow", "mlflow")
        self._client = self._mlflow.MlflowClient()
        self.experiment, self.name = experiment, name
        self._run = ""

    def __call__(self, news: News) -> None:
        if not self._run:
            self._begin(news)
        now, several = int(1000 * time.time()), len(news.settings["seeds"]) > 1
        metrics = [
            self._mlflow.entities.Metric(_allowed(name, row["seed"] if several else None), value, now, row["round"])
            for row in news.rows()
            for name, value in _numbers(row).items()
        ]
        for start in range(0, len(metrics), _BATCH):
            self._client.log_batch(self._run, metrics[start : start + _BATCH])
        if news.result is not None:
            self._client.set_tag(self._run, "verdict", news.result.verdict().splitlines()[0])
        if news.result is not None or news.error is not None:
            self._client.set_terminated(self._run, "FINISHED" if news.error is None else "FAILED")
            self._run = ""

    def _begin(self, news: News) -> None:
        found = self._client.get_experiment_by_name(self.experiment)
        number = self._client.create_experiment(self.experiment) if found is None else found.experiment_id
        self._run = self._client.create_run(number, run_name=self.name or None).info.run_id
        for name in _TOLD:
            self._client.log_param(self._run, name, str(news.settings[name])[:6000])


class Trackio:
    """Every number of every round as a metric of trackio (extra ``trackio``), a run for each seed.

    It is written to the library's own folder, TRACKIO_DIR; to a server or a Space only where trackio's own variables
    say so. Of several seeds, a run's name ends in its seed.
    """

    def __init__(self, project: str = "fedsgm", name: str = "") -> None:
        self._trackio = _needed("trackio", "trackio")
        self.project, self.name = project, name
        self._runs: dict[int, Any] = {}

    def __call__(self, news: News) -> None:
        with contextlib.redirect_stdout(io.StringIO()):  # where a command's own words go
            for row in news.rows():
                if row["seed"] not in self._runs:
                    self._runs[row["seed"]] = self._begin(news, row["seed"])
                self._runs[row["seed"]].log(_numbers(row), step=row["round"])
            if news.result is not None or news.error is not None:
                for run in self._runs.values():
                    current = self._trackio.context_vars.current_run.get() is run
                    (self._trackio if current else run).finish()  # once: it is not the current one at exit
                self._runs = {}

    def _begin(self, news: News, seed: int) -> Any:
        last = f"seed-{seed}" if len(news.settings["seeds"]) > 1 else ""
        told = {name: str(news.settings[name]) for name in _TOLD}
        return self._trackio.init(
            project=self.project,
            name="-".join(filter(None, (self.name, last))) or None,
            config=told,
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )


def _allowed(name: str, seed: int | None) -> str:
    plain = re.sub(r"[^\w\-. /]", "_", name)
    return plain if seed is None else f"seed-{seed}/{plain}"
