"""Metrics to where people watch them: TensorBoard and MLflow, when they are there. Knows numbers and steps, not models.

`metrics.jsonl` stays the truth. What is written elsewhere waits in memory until it has arrived: a logger that fails (a
server that is down, a full disk) says so once and is tried again later, ever more rarely. It never stops the training.
"""

import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol

_WRITE_EVERY = 5.0  # seconds
_PAUSE = 60.0  # seconds until a logger that failed is tried again; then twice as long, and so on
_BATCH = 1000  # metrics that an MLflow server takes at once


class Row(NamedTuple):
    at: float  # Unix time
    step: int
    values: dict[str, float]


class Logger(Protocol):
    """What is behind `write` has it when `write` returns; whatever is wrong is raised."""

    def write(self, rows: Sequence[Row]) -> None: ...

    def close(self, outcome: str) -> None: ...


class Loggers:
    """Some loggers as one that never fails. Each is opened at its first row."""

    def __init__(
        self,
        openers: Mapping[str, Callable[[], Logger]] | None = None,
        warn: Callable[[str], None] = lambda message: None,
    ) -> None:
        self._all = [_Guarded(name, opener, warn) for name, opener in (openers or {}).items()]

    def log(self, step: int, values: Mapping[str, float]) -> None:
        row = Row(time.time(), step, {k: v for k, v in values.items() if math.isfinite(v)})
        for logger in self._all:
            logger.rows.append(row)
            if time.monotonic() >= logger.written_at + _WRITE_EVERY:
                logger.flush()

    def flush(self) -> None:
        """Write what is waiting, before a checkpoint says that it happened."""
        for logger in self._all:
            logger.flush()

    def close(self, outcome: str = "FINISHED") -> None:
        """The end: FINISHED, KILLED or FAILED, in MLflow's words."""
        for logger in self._all:
            logger.close(outcome)


class _Guarded:
    """One logger, the rows that wait for it, and its failures."""

    def __init__(self, name: str, opener: Callable[[], Logger], warn: Callable[[str], None]) -> None:
        self.name, self.opener, self.warn = name, opener, warn
        self.logger: Logger | None = None
        self.rows: list[Row] = []
        self.written_at, self.retry_at, self.pause, self.warned = -math.inf, -math.inf, _PAUSE, False

    def flush(self, last: bool = False) -> None:
        if not self.rows or (time.monotonic() < self.retry_at and not last):
            return
        try:
            if self.logger is None:
                self.logger = self.opener()
            self.logger.write(self.rows)
        except Exception as error:
            self._failed(error)
            return
        self.rows, self.written_at, self.pause = [], time.monotonic(), _PAUSE

    def close(self, outcome: str) -> None:
        self.flush(last=True)
        try:
            if self.logger is not None:
                self.logger.close(outcome)
        except Exception as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self.retry_at, self.pause = time.monotonic() + self.pause, 2 * self.pause
        if not self.warned:
            self.warned = True
            why = " ".join(str(error).split()) or type(error).__name__
            why = why if len(why) <= 160 else f"{why[:160]}..."
            self.warn(f"{self.name} does not take the metrics ({why}); training goes on, and metrics.jsonl has them")


class TensorBoard:
    """Event files. What an earlier process wrote after step `after` is taken back."""

    def __init__(self, folder: Path, after: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder), purge_step=after + 1 if folder.exists() else None)

    def write(self, rows: Sequence[Row]) -> None:
        for row in rows:
            for name, value in row.values.items():
                self._writer.add_scalar(name, value, row.step, walltime=row.at)
        self._writer.flush()

    def close(self, outcome: str) -> None:
        self._writer.close()


class MLflow:
    """A run at the server of MLFLOW_TRACKING_URI. Its id stays in `file`, so that a resumed run goes on with it.

    Metrics cannot be taken back there. Steps that it already has are not sent again: they were the same.
    """

    def __init__(self, file: Path, name: str, params: Mapping[str, str]) -> None:
        for key, value in (
            ("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1"),  # by default a server that is down holds a call for minutes
            ("MLFLOW_HTTP_REQUEST_TIMEOUT", "10"),
            ("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true"),
        ):
            os.environ.setdefault(key, value)
        import mlflow

        self._mlflow, self._client = mlflow, mlflow.MlflowClient()
        try:
            run = self._known(file) or self._new(file, name, params)
            self._id = run.info.run_id
            self._last = {
                key: max(m.step for m in self._client.get_metric_history(self._id, key)) for key in run.data.metrics
            }
        except BaseException:
            with suppress(Exception):
                mlflow.end_run("FAILED")  # so that it can be opened again
            raise

    def _known(self, file: Path) -> Any:
        if not file.exists():
            return None
        try:
            return self._mlflow.start_run(run_id=json.loads(file.read_text(encoding="utf-8"))["run_id"])
        except self._mlflow.MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":  # another server: begin there anew
                return None
            raise

    def _new(self, file: Path, name: str, params: Mapping[str, str]) -> Any:
        run = self._mlflow.start_run(run_name=name)
        aside = file.with_name(f".{file.name}.{os.getpid()}")
        aside.write_text(json.dumps({"run_id": run.info.run_id}) + "\n", encoding="utf-8")
        aside.replace(file)
        self._client.log_batch(run.info.run_id, params=[self._mlflow.entities.Param(*p) for p in params.items()])
        return run

    def write(self, rows: Sequence[Row]) -> None:
        metrics = []
        for row in rows:
            for name, value in row.values.items():
                key = name.replace("@", "_at_")  # MLflow allows no @
                if row.step > self._last.get(key, -1):
                    metrics.append(self._mlflow.entities.Metric(key, value, round(1000 * row.at), row.step))
        for start in range(0, len(metrics), _BATCH):
            part = metrics[start : start + _BATCH]
            self._client.log_batch(self._id, metrics=part)
            self._last |= {m.key: m.step for m in part}

    def close(self, outcome: str) -> None:
        self._mlflow.end_run(outcome)


def loggers_for(folder: Path, manifest: Mapping[str, Any], step: int, warn: Callable[[str], None]) -> Loggers:
    """Those that are there for a run that begins after `step`: TensorBoard if it is installed, MLflow if it is
    installed and MLFLOW_TRACKING_URI says where to."""
    openers: dict[str, Callable[[], Logger]] = {}
    if find_spec("tensorboard"):
        openers["TensorBoard"] = lambda: TensorBoard(folder / "tensorboard", step)
    if os.environ.get("MLFLOW_TRACKING_URI") and find_spec("mlflow"):
        params = {f"{part}.{k}": str(v) for part, settings in manifest["config"].items() for k, v in settings.items()}
        params["dataset"] = manifest["dataset"]["content_id"]
        openers["MLflow"] = lambda: MLflow(folder / "mlflow.json", folder.resolve().name, params)
    return Loggers(openers, warn)
