"""The process, or the processes: sockets, signals, workers, logs. Knows uvicorn; routes are lrurec.serving.http's.

With one worker this process serves. With several it holds the socket, starts them, starts again whoever dies, and passes
a signal to stop on to all.
"""

import contextlib
import ctypes
import ipaddress
import json
import logging
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

from lrurec.errors import LrurecError, SettingsError
from lrurec.serving.keys import read_keys

LOG = logging.getLogger("lrurec.server")
_TOLD = "LRUREC_WORKER"  # what a worker is told
_PAUSE = 2.0  # seconds between two starts of a worker
_FIELDS = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


@dataclass(frozen=True)
class Settings:
    """All that stands on the command line of `lrurec serve`."""

    artifact: str
    store: str
    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    keys: str | None = None
    insecure: bool = False
    bound: int = 0
    learn: bool = False
    queue: int = 512
    batch_wait: float = 0.0  # milliseconds
    log_requests: bool = False


class _Json(logging.Formatter):
    """One line of JSON per message."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "worker": record.process,
        }
        line |= {name: value for name, value in vars(record).items() if name not in _FIELDS}
        if record.exc_info:
            line["trace"] = "".join(traceback.format_exception(*record.exc_info))
        return json.dumps(line, default=str)


def log_as_json() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    LOG.setLevel(logging.INFO)


def check(settings: Settings) -> None:
    """Refuse an address that others can reach as long as there are no keys."""
    if len(read_keys(settings.keys)) or settings.insecure:
        return
    try:
        loopback = settings.host == "localhost" or ipaddress.ip_address(settings.host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise SettingsError(
            f"without keys the server listens on loopback only, and {settings.host} is not; pass --keys FILE, set"
            " LRUREC_KEYS, or say --insecure if the network itself keeps strangers out"
        )


def listen(host: str, port: int) -> socket.socket:
    """The socket; an address in use is said to be so."""
    made = None
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(2048)
        made.set_inheritable(True)
    except OSError as error:
        if made is not None:
            made.close()
        raise SettingsError(
            f"cannot listen on {host}:{port} ({error.strerror or error}); choose another --host or --port"
        ) from None
    return made


def serve(settings: Settings) -> int:
    """Serve until SIGTERM or Ctrl-C; gives the exit code."""
    check(settings)
    from lrurec.serving.control import Control  # imports asyncio: not before mistakes are told

    with _own_folder() as folder, listen(settings.host, settings.port) as sock:
        Control.begin(folder, settings.artifact)
        if settings.workers > 1:
            return _watch_over(settings, folder, sock)
        run_worker(settings, folder, sock)
        return 0


@contextmanager
def _own_folder() -> Iterator[Path]:
    """A folder for what the workers tell each other."""
    folder = Path(tempfile.mkdtemp(prefix="lrurec-serve-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_worker(settings: Settings, folder: Path, sock: socket.socket) -> None:
    """Serve in this process until told to stop."""
    import uvicorn

    from lrurec.serving.control import Control
    from lrurec.serving.http import Api
    from lrurec.serving.service import Live

    control = Control(folder, settings.workers)
    path, count = control.wanted()
    live = Live(path, settings.store, bound=settings.bound, learn=settings.learn)
    log_as_json()
    _many_files()
    sys.setswitchinterval(0.0005)  # the writer and the loop take turns more often than every 5 ms
    control.reached(count)
    if live.store.durable() is False:
        LOG.warning("Redis may lose acknowledged events in a crash; set appendonly yes and appendfsync always")
    keys = read_keys(settings.keys)
    api = Api(
        live,
        keys=keys,
        control=control,
        limit=settings.queue,
        wait=settings.batch_wait / 1000,
        local=not len(keys) and not settings.insecure,
        log_requests=settings.log_requests,
    )
    if settings.workers == 1:
        announce(settings.artifact, live.store.where, sock, live.artifact.manifest["index"], settings.learn)
    config = uvicorn.Config(
        api,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=15,
    )
    # uvicorn takes these over while it serves, and raises them again behind itself: nothing is left to do then.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _nothing)
    signal.signal(signal.SIGHUP, lambda number, frame: os.kill(os.getpid(), signal.SIGTERM))
    uvicorn.Server(config).run(sockets=[sock])


def announce(artifact: str, store: str, sock: socket.socket, index: dict[str, object], learn: bool) -> None:
    """For people, on stdout; what programs want is in the log."""
    host, port = sock.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    recall = f" ({index['recall@20']:.1%} of the exact top 20)" if "recall@20" in index else ""
    print(f"serving   {artifact} with {store} on http://{shown}:{port}", flush=True)
    if learn:
        print("learning  the memory of each worker counts the events that come in", flush=True)
    print(
        f"search    {index['kind']}{recall}; the page is at /, the API at /openapi.json; stop with Ctrl-C", flush=True
    )


def _nothing(number: int, frame: FrameType | None) -> None:
    pass


def _many_files() -> None:
    """As many connections as the system lets us have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard != resource.RLIM_INFINITY else 1 << 20, hard))


# Several workers


def _watch_over(settings: Settings, folder: Path, sock: socket.socket) -> int:
    from lrurec.serving.artifact import Artifact
    from lrurec.serving.store.opening import open_store

    artifact = Artifact.open(settings.artifact)  # mistakes are told here, and not by every worker
    if settings.learn:
        artifact.need_memory()
    store = open_store(settings.store, bound=settings.bound)
    store.close()
    log_as_json()
    announce(settings.artifact, store.where, sock, artifact.manifest["index"], settings.learn)
    (folder / "metrics").mkdir()
    stop: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda n, frame: stop.append(n))
    workers = [_start(settings, folder, sock) for _ in range(settings.workers)]
    born = [time.monotonic()] * len(workers)
    told: set[int] = set()
    while not stop:
        time.sleep(0.1)
        for k, worker in enumerate(workers):
            if (ended := worker.poll()) is None:
                continue
            if worker.pid not in told:
                told.add(worker.pid)
                LOG.error("a worker died; another takes its place", extra={"pid": worker.pid, "code": ended})
                _clear_metrics(folder, worker.pid)
            if time.monotonic() - born[k] > _PAUSE:  # one that cannot start is not tried without end
                workers[k], born[k] = _start(settings, folder, sock), time.monotonic()
    for worker in workers:
        worker.terminate()
    for worker in workers:
        try:
            worker.wait(30)
        except subprocess.TimeoutExpired:
            worker.kill()
    return 0


def _start(settings: Settings, folder: Path, sock: socket.socket) -> "subprocess.Popen[bytes]":
    what = json.dumps(
        {"settings": asdict(settings), "folder": str(folder), "socket": sock.fileno(), "parent": os.getpid()}
    )
    return subprocess.Popen(
        [sys.executable, "-m", "lrurec.serving.server"],
        pass_fds=[sock.fileno()],
        # Not among the arguments, which everybody on the machine can read: the address of a Redis may have a password.
        env=os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(folder / "metrics"), _TOLD: what},
        start_new_session=True,  # Ctrl-C reaches us alone, and we tell them
    )


def _clear_metrics(folder: Path, pid: int) -> None:
    """What a dead worker had in flight is not in flight any more."""
    for file in (folder / "metrics").glob(f"gauge_live*_{pid}.db"):
        file.unlink(missing_ok=True)


def _worker() -> int:
    told = json.loads(os.environ.pop(_TOLD))
    _die_with(told["parent"])
    sock = socket.socket(fileno=told["socket"])
    try:
        run_worker(Settings(**told["settings"]), Path(told["folder"]), sock)
    except LrurecError as error:
        log_as_json()
        LOG.error("cannot start", extra={"error": str(error)})
        return 2
    return 0


def _die_with(parent: int) -> None:
    """Linux sends us SIGTERM when our parent dies, however it does: nobody else would take the port from us."""
    signalled = 1  # PR_SET_PDEATHSIG
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(signalled, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(0)


if __name__ == "__main__":
    sys.exit(_worker())
