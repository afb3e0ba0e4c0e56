"""`lrurec serve`: recommendations over HTTP."""

import argparse
import os

from lrurec.cli.arguments import Commands, positive
from lrurec.cli.parts import need
from lrurec.errors import SettingsError

EXAMPLES = """\
examples:
  lrurec serve artifacts/mine --store store/                     on http://127.0.0.1:8000, with a page to try it
  lrurec serve artifacts/mine --store store/ --workers 2         two processes, one store
  lrurec serve artifacts/mine --store redis://localhost:6379/0   histories and states in Redis
  lrurec serve artifacts/mine --store store/ --host 0.0.0.0 --keys keys.txt
                                                                 for others; keys.txt has lines such as: write 71aa0c...
  curl -X POST 'localhost:8000/v1/events?recommend=3' -H 'content-type: application/json' \\
    -d '{"user": "ann", "item": "tea"}'
"""


def add(commands: Commands) -> None:
    p = commands.add_parser(
        "serve",
        help="recommendations over HTTP that follow every event, and a page to see it",
        description="Serve an artifact. Events are on disk when they are acknowledged, and the next recommendation knows"
        " them.\nThe API is described at /openapi.json and in docs/serving.md.",
        epilog=EXAMPLES,
    )
    p.add_argument("artifact", metavar="ARTIFACT", help="an artifact folder made by lrurec export")
    p.add_argument(
        "--store",
        metavar="PATH",
        help="a folder, made if needed, or redis://HOST:PORT/DB; may also stand in LRUREC_STORE, where nobody reads a password",
    )
    p.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    p.add_argument("--port", type=_port, default=8000, help="port to listen on; 0 takes a free one (default: 8000)")
    p.add_argument("--workers", type=positive, default=1, metavar="N", help="processes (default: 1)")
    p.add_argument("--keys", metavar="FILE", help="API keys: lines with a role (read, write, admin) and a key")
    p.add_argument("--insecure", action="store_true", help="listen on any address without keys")
    p.add_argument(
        "--bound",
        type=positive,
        default=0,
        metavar="N",
        help="keep the newest N events of a user, and up to 63 more (default: all)",
    )
    p.add_argument(
        "--learn",
        action="store_true",
        help="let the memory of the artifact (--recipe best, memory.use=true) count the events that come in, in this process until it ends",
    )
    p.add_argument(
        "--queue",
        type=positive,
        default=512,
        metavar="N",
        help="requests at a time before 503 (default: 512 per worker)",
    )
    p.add_argument(
        "--batch-wait",
        type=_milliseconds,
        default=0.0,
        metavar="MS",
        help="wait for company before scoring (default: 0)",
    )
    p.add_argument("--log-requests", action="store_true", help="a line of JSON for every request, on stderr")
    p.set_defaults(run=run, parser=p)


def _port(text: str) -> int:
    if not (text.isdigit() and int(text) < 65536):
        raise argparse.ArgumentTypeError(f"'{text}' is not a port (0 to 65535)")
    return int(text)


def _milliseconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1000:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of milliseconds (0 to 1000)")
    return value


def run(options: argparse.Namespace) -> int:
    need("serve")
    from lrurec.serving.server import Settings, serve

    where = options.store or os.environ.get("LRUREC_STORE")
    if not where:
        raise SettingsError("say where histories and states are kept: --store PATH, or LRUREC_STORE")

    return serve(
        Settings(
            options.artifact,
            where,
            host=options.host,
            port=options.port,
            workers=options.workers,
            keys=options.keys,
            insecure=options.insecure,
            bound=options.bound,
            learn=options.learn,
            queue=options.queue,
            batch_wait=options.batch_wait,
            log_requests=options.log_requests,
        )
    )
