"""What serving costs and survives: in process, over HTTP, a million users, kill -9. Tables go to results/serve.md.

    LRUREC_DATA=DIR python bench/serve.py --work DIR [--only PART]... [--minutes 10] [--kills 50]

--work holds the artifacts (trained once, by plain lrurec commands) and the stores; it needs some 20 GB. Parts: process,
http, large, huge, redis, soak, million, kills, redis-kills. Each is kept in results/serve.json when it is done.
"""

import argparse
import http.client
import json
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from lrurec.serving.artifact import Artifact
from lrurec.serving.service import Live
from lrurec.serving.store.base import Kept
from lrurec.serving.store.embedded import EmbeddedStore
from measure import machine

ROOT = Path(__file__).parents[1]
HERE = Path(__file__).parent
LRUREC = [sys.executable, "-m", "lrurec.cli.main"]
SAMPLED = ("training.loss=sampled", "training.negatives=4096", "training.shared_negatives=true")
EVENTS, NEAR = 2048, 64


def lrurec(*arguments: object) -> str:
    return subprocess.run([*LRUREC, *map(str, arguments)], check=True, stdout=subprocess.PIPE, text=True).stdout


# Artifacts


def artifact(work: Path, name: str) -> Path:
    """ml-1m, or a made-up catalogue of some items; trained for a while, so that its vectors lie as trained ones do."""
    out = work / f"artifact-{name}"
    if out.exists():
        return out
    data, run = work / f"data-{name}", work / f"run-{name}"
    more: tuple[str, ...]
    if name == "ml-1m":
        steps, more = 100, ("training.max_length=200",)
        source = Path(os.environ["LRUREC_DATA"]) / "ml-1m/ml-1m.txt.gz"
    else:
        items = int(float(name))
        steps, more = (300, SAMPLED) if items < 500_000 else (800, SAMPLED)
        source = work / f"events-{name}.parquet"
        if not source.exists():
            lrurec("data", "synth", "--users", items // 10, "--items", items, "--events", 10 * items, "--out", source)
    if not data.exists():
        lrurec("prepare", source, "--out", data)
    if not (run / "result.json").exists():
        shutil.rmtree(run, ignore_errors=True)
        settings = (f"training.steps={steps}", f"training.validate_every={steps}", *more)
        lrurec("train", data, "--out", run, *(part for s in settings for part in ("--set", s)))
    lrurec("export", run, "--out", out)
    return out


# In process


def process(options: argparse.Namespace) -> dict[str, Any]:
    """One observe + recommend, without the wait for the disk, as the history grows; against encoding it again."""
    opened = Artifact.open(artifact(options.work, "ml-1m"))
    store = options.work / "store-process"
    ids = [opened.item_ids[k] for k in range(opened.n_items)]
    rng = np.random.default_rng(0)
    rounds = []
    shutil.rmtree(store, ignore_errors=True)
    with Live(opened, EmbeddedStore(store, durable=False)) as live:
        for user in range(6):
            times = []
            for item in rng.choice(len(ids), EVENTS):
                started = time.perf_counter()
                live.observe(f"user-{user}", ids[item])
                live.recommend(f"user-{user}", 10)
                times.append(time.perf_counter() - started)
            rounds.append(times)
    each = np.median(np.array(rounds[1:]), 0)
    again = reencoding(opened)
    at = {str(k): float(np.median(each[max(0, k - NEAR) : k])) for k in (64, 256, 1024, 2048)}
    return {
        "median": float(np.median(each)),
        "at": at,
        "first": float(np.median(each[:NEAR])),
        "last": float(np.median(each[-NEAR:])),
        "model": stepping(opened),
        "transformer": again,
        "ratio_at_50": again["50"] / float(np.median(each[18:82])),
    }


def stepping(opened: Artifact) -> dict[str, float]:
    """The model alone: from a state at hand and an item to the best ten, those seen left out."""
    engine, retriever = opened.engine, opened.retriever()
    history = np.random.default_rng(0).integers(0, opened.n_items, EVENTS)
    found = {}
    for length in (50, 64, 256, 1024, 2048):
        states, times = engine.initial(1), []
        for k in range(200):
            item = history[k : k + 1]
            started = time.perf_counter()
            hidden = engine.step(states, item)
            retriever.search(hidden, 10, [history[:length]])
            times.append(time.perf_counter() - started)
        found[str(length)] = statistics.median(times[20:])
    return found


def reencoding(opened: Artifact) -> dict[str, float]:
    """SASRec's way: two causal attention blocks of the same width over the whole history, then all scores (torch, 1 thread)."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    layer = nn.TransformerEncoderLayer(64, 2, 256, 0.0, "gelu", batch_first=True, norm_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    table, positions = torch.from_numpy(np.array(opened.engine.table)), torch.randn(EVENTS, 64)
    found = {}
    with torch.inference_mode():
        for length in (50, 64, 256, 1024, 2048):
            items = torch.randint(0, len(table), (length,))
            mask = nn.Transformer.generate_square_subsequent_mask(length)
            times = []
            for _ in range(30 if length < 500 else 8):
                started = time.perf_counter()
                x = (table[items] + positions[:length])[None]
                hidden = model(x, mask=mask, is_causal=True)[0, -1]
                scores = table @ hidden
                scores[items] = -torch.inf
                scores.topk(10)
                times.append(time.perf_counter() - started)
            found[str(length)] = statistics.median(times[2:])
    return found


# Over HTTP


@contextmanager
def serving(folder: Path, store: str, *options: str) -> Iterator[tuple[int, int]]:
    """A server; gives (port, process id)."""
    command = [*LRUREC, "serve", str(folder), "--store", store, "--port", "0", *options]
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert server.stdout is not None
        port = int(server.stdout.readline().rsplit(":", 1)[1])
        for _ in range(1200):
            try:
                if Client(port).ask("GET", "/readyz")[0] == 200:
                    break
            except OSError:
                time.sleep(0.05)
        try:
            yield port, server.pid
        finally:
            if server.poll() is None:
                server.send_signal(signal.SIGTERM)
            server.wait(60)
            server.stdout.close()


class Client:
    """A blocking client for where speed does not matter."""

    def __init__(self, port: int) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        raw = None if body is None else json.dumps(body).encode()
        self.connection.request(method, path, raw, {"content-type": "application/json"})
        got = self.connection.getresponse()
        text = got.read()
        return got.status, text


def load(
    port: int, folder: Path, rate: float, seconds: float, users: int = 10_000, connections: int = 64
) -> dict[str, Any]:
    opened = Artifact.open(folder, verify=False)
    some = [str(opened.item_ids[k]) for k in range(0, opened.n_items, max(1, opened.n_items // 1000))]
    told = {"port": port, "rate": rate, "seconds": seconds, "users": users, "items": some, "seed": 1}
    command = [sys.executable, str(HERE / "load.py"), json.dumps(told | {"connections": connections})]
    return dict(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))


def rates(
    options: argparse.Namespace, name: str, store: str, tried: tuple[float, ...], *more: str
) -> list[dict[str, Any]]:
    """Fixed rates, one after the other, each three times; the middle one by p90 is kept."""
    folder, found = artifact(options.work, name), []
    if not store.startswith("redis"):
        shutil.rmtree(store, ignore_errors=True)
    with serving(folder, store, *more) as (port, _):
        load(port, folder, min(tried), 5)
        for rate in tried:
            three = sorted((load(port, folder, rate, options.seconds) for _ in range(3)), key=lambda r: r["p90"])
            found.append(three[1] | {"all_p90": [r["p90"] for r in three]})
            print(
                name,
                store,
                rate,
                {k: round(v, 2) for k, v in found[-1].items() if k in ("rate", "p50", "p90", "p99")},
                flush=True,
            )
    return found


def over_http(options: argparse.Namespace) -> dict[str, Any]:
    store = str(options.work / "store-http")
    return {
        "1": rates(options, "ml-1m", store, (1000, 2000, 2500, 3000)),
        "2": rates(options, "ml-1m", store, (1000, 2000, 2500, 3000), "--workers", "2"),
    }


def large(options: argparse.Namespace) -> dict[str, Any]:
    store = str(options.work / "store-large")
    return {
        "1": rates(options, "1e5", store, (500, 1000)),
        "2": rates(options, "1e5", store, (500, 1000), "--workers", "2"),
    }


def huge(options: argparse.Namespace) -> dict[str, Any]:
    """One request after the other."""
    folder = artifact(options.work, "1e6")
    store = str(options.work / "store-huge")
    shutil.rmtree(store, ignore_errors=True)
    opened = Artifact.open(folder, verify=False)
    with serving(folder, store) as (port, _):
        found = load(port, folder, 20, options.seconds, users=100, connections=1)
    return {"load": found, "index": opened.manifest["index"]}


def over_redis(options: argparse.Namespace) -> dict[str, Any]:
    with redis_server(options.work / "redis") as address:
        return {"1": rates(options, "ml-1m", address, (500, 1000, 2000))}


@contextmanager
def redis_server(folder: Path, port: int = 0) -> Iterator[str]:
    """A Redis that acknowledges nothing before it is on disk."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    if not port:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
    process = start_redis(folder, port)
    try:
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.terminate()
        process.wait()


def start_redis(folder: Path, port: int) -> "subprocess.Popen[bytes]":
    command = f"redis-server --port {port} --bind 127.0.0.1 --dir {folder} --appendonly yes --appendfsync always --save"
    process = subprocess.Popen([*command.split(), ""], stdout=subprocess.DEVNULL)
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            break
        except OSError:
            time.sleep(0.05)
    return process


def soak(options: argparse.Namespace) -> dict[str, Any]:
    """Minutes at 80% of 2,000 requests a second; the server's memory meanwhile."""
    folder, store = artifact(options.work, "ml-1m"), options.work / "store-soak"
    shutil.rmtree(store, ignore_errors=True)
    memory: list[int] = []
    stop = threading.Event()
    with serving(folder, str(store)) as (port, pid):
        load(port, folder, 1600, 20)

        def watch() -> None:
            while not stop.wait(5) and Path(f"/proc/{pid}").exists():
                memory.append(private_bytes(pid))

        watcher = threading.Thread(target=watch)
        watcher.start()
        found = load(port, folder, 1600, 60 * options.minutes)
        stop.set()
        watcher.join()
    return found | {"minutes": options.minutes, "memory": memory}


def private_bytes(pid: int) -> int:
    """What a process holds of its own: not the pages of files, which the system takes back when it wants."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


# A million users


def million(options: argparse.Namespace) -> dict[str, Any]:
    folder, store = artifact(options.work, "ml-1m"), options.work / "store-million"
    users, opened = options.users, Artifact.open(folder)
    live_id = opened.id
    if not (store / "data.mdb").exists():
        file = options.work / "million.jsonl"
        if not file.exists():
            rng = np.random.default_rng(0)
            names = [str(opened.item_ids[k]) for k in range(opened.n_items)]
            with file.with_suffix(".part").open("w") as out:
                for u in range(users):
                    for k, item in enumerate(rng.integers(0, len(names), rng.integers(5, 46)).tolist()):
                        out.write(f'{{"user": "user-{u}", "item": "{names[item]}", "time": {k + 1}}}\n')
            file.with_suffix(".part").replace(file)
        started = time.perf_counter()
        lrurec("store", "import", store, "--artifact", folder, file)
        imported = time.perf_counter() - started
    else:
        imported = 0.0
    info = json.loads(lrurec("store", "info", store, "--json"))
    other = changed(folder, options.work / "artifact-other")
    rebuilt = []
    for target in (other, folder) * 2:
        told = json.loads(lrurec("store", "rebuild", store, "--artifact", target, "--json"))
        if told["written"]:
            rebuilt.append(told["events"] / told["seconds"])
    lrurec("store", "rebuild", store, "--artifact", folder)
    starts = []
    for _ in range(5):
        started = time.perf_counter()
        with serving(folder, str(store)):
            starts.append(time.perf_counter() - started)
    assert live_id == Artifact.open(folder).id
    return {"info": info, "import_seconds": imported, "rebuilt": rebuilt, "starts": starts}


def changed(folder: Path, out: Path) -> Path:
    """The same artifact with another bias: another id, so all states must be made again."""
    from lrurec.folder import new_folder, write_manifest

    if out.exists():
        return out
    manifest = json.loads((folder / "manifest.json").read_text())
    with new_folder(out, "artifact") as work:
        for file in folder.iterdir():
            if file.name != "manifest.json":
                shutil.copy(file, work / file.name)
        np.save(work / "bias.npy", np.load(folder / "bias.npy") + np.float32(1))
        write_manifest(work, {k: v for k, v in manifest.items() if k not in ("files", "seal")}, sealed=True)
    return out


# Kill -9


class Writers:
    """Threads that write events, each for users of its own, and remember what was acknowledged."""

    def __init__(self, threads: int) -> None:
        self.sent = [0] * threads
        self.acknowledged: list[list[int]] = [[] for _ in range(threads)]
        self.statuses: dict[int, int] = {}

    def run(self, port: int, until: threading.Event, *, give_up: bool) -> list[threading.Thread]:
        threads = [threading.Thread(target=self._write, args=(k, port, until, give_up)) for k in range(len(self.sent))]
        for thread in threads:
            thread.start()
        return threads

    def _write(self, thread: int, port: int, until: threading.Event, give_up: bool) -> None:
        client = Client(port)
        while not until.is_set():
            self.sent[thread] += 1
            n = self.sent[thread]
            event = {"user": f"writer-{thread}", "item": ITEMS[n % len(ITEMS)], "id": str(n), "time": n}
            while not until.is_set():  # the same event until it is acknowledged, or the server is gone
                try:
                    status, _ = client.ask("POST", "/v1/events", event)
                except (OSError, http.client.HTTPException):
                    if give_up:
                        return
                    client = Client(port)
                    time.sleep(0.02)
                    continue
                self.statuses[status] = self.statuses.get(status, 0) + 1
                if status == 200:
                    self.acknowledged[thread].append(n)
                    break
                time.sleep(0.02)

    def check(self, live: Live) -> dict[str, int]:
        """Every acknowledged event there, once, in order."""
        lost = twice = misplaced = stored = 0
        for thread, acknowledged in enumerate(self.acknowledged):
            record = live.store.read(f"writer-{thread}", live.served.states)
            events: tuple[Kept, ...] = record.events if record else ()
            found = [e.time // 1_000_000 for e in events]
            stored += len(found)
            lost += len(set(acknowledged) - set(found))
            twice += len(found) - len(set(found))
            misplaced += found != sorted(found)
            misplaced += sum(e.item != ITEMS[n % len(ITEMS)] for e, n in zip(events, found, strict=True))
        acknowledged_ = sum(map(len, self.acknowledged))
        return {"acknowledged": acknowledged_, "stored": stored, "lost": lost, "twice": twice, "misplaced": misplaced}


ITEMS: list[str] = []


def kills(options: argparse.Namespace) -> dict[str, Any]:
    """The server killed at random moments under load."""
    folder, store = artifact(options.work, "ml-1m"), options.work / "store-kills"
    shutil.rmtree(store, ignore_errors=True)
    opened = Artifact.open(folder)
    ITEMS[:] = [str(opened.item_ids[k]) for k in range(1000)]
    writers, chance = Writers(8), random.Random(0)
    for k in range(options.kills):
        workers = ("--workers", "2") if k % 5 == 4 else ()
        with serving(folder, str(store), *workers) as (port, pid):
            stop = threading.Event()
            threads = writers.run(port, stop, give_up=True)
            time.sleep(chance.uniform(0.05, 1.5))
            for child in children(pid):
                os.kill(child, signal.SIGKILL)
            os.kill(pid, signal.SIGKILL)
            stop.set()
            for thread in threads:
                thread.join()
        print(f"kill {k + 1}: {sum(map(len, writers.acknowledged)):,} acknowledged", flush=True)
    with Live(opened, store) as live:
        found = writers.check(live)
    verified = subprocess.run(
        [*LRUREC, "store", "verify", str(store), "--artifact", str(folder)], capture_output=True, text=True
    )
    return {"kills": options.kills, **found, "verify": verified.stdout.strip(), "verify_code": verified.returncode}


def redis_kills(options: argparse.Namespace) -> dict[str, Any]:
    """Redis killed and started again under load; the server stays."""
    folder, data = artifact(options.work, "ml-1m"), options.work / "redis-kills"
    opened = Artifact.open(folder)
    ITEMS[:] = [str(opened.item_ids[k]) for k in range(1000)]
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    writers, chance, process = Writers(8), random.Random(0), start_redis(data, port)
    address = f"redis://127.0.0.1:{port}/0"
    stop = threading.Event()
    with serving(folder, address) as (http_port, _):
        threads = writers.run(http_port, stop, give_up=False)
        for k in range(options.redis_kills):
            time.sleep(chance.uniform(0.3, 1.5))
            process.kill()
            process.wait()
            time.sleep(chance.uniform(0.1, 1.0))
            process = start_redis(data, port)
            print(f"redis kill {k + 1}: {sum(map(len, writers.acknowledged)):,} acknowledged", flush=True)
        time.sleep(2)
        stop.set()
        for thread in threads:
            thread.join()
    with Live(opened, address) as live:
        found = writers.check(live)
    verified = subprocess.run(
        [*LRUREC, "store", "verify", address, "--artifact", str(folder)], capture_output=True, text=True
    )
    process.terminate()
    process.wait()
    statuses = {str(k): v for k, v in sorted(writers.statuses.items())}
    return {
        "kills": options.redis_kills,
        **found,
        "statuses": statuses,
        "verify": verified.stdout.strip(),
        "verify_code": verified.returncode,
    }


def children(pid: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True).stdout
    return [int(word) for word in found.split()]


# Tables

PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "process": process,
    "http": over_http,
    "large": large,
    "huge": huge,
    "redis": over_redis,
    "soak": soak,
    "million": million,
    "kills": kills,
    "redis-kills": redis_kills,
}


def write(facts: dict[str, Any]) -> None:
    results = ROOT / "results"
    (results / "serve.json").write_text(json.dumps(facts, indent=1) + "\n")
    lines = ["# Serving", "", f"`LRUREC_DATA=DIR python bench/serve.py --work DIR` on {facts['machine']}.", ""]
    if f := facts.get("process"):
        lines += ["## In process, ML-1M's catalogue (3,416 items)", ""]
        lines += [
            "One observe + recommend (10 items, seen ones left out), embedded store, without the wait for the disk; medians around",
            "each place over 5 users. Beside it the model alone (a step from a state at hand, all scores, the best 10), and what a model without",
            "a state does: a transformer of the same width (torch's own, two blocks, causal, one thread) encodes the history again, then all",
            "scores and the best 10. One thread each.",
            "",
            "| event | observe + recommend, us | the model alone, us | encoding again, us |",
            "|---:|---:|---:|---:|",
        ]
        lines += [
            f"| {int(k):,} | {v * 1e6:.0f} | {f['model'][k] * 1e6:.0f} | {f['transformer'][k] * 1e6:,.0f} |"
            for k, v in f["at"].items()
        ]
        lines += [
            "",
            f"Median of all: {f['median'] * 1e6:.0f} us. The last {NEAR} of {EVENTS:,} events cost {f['last'] / f['first']:.2f} times the first {NEAR}.",
            f"At length 50 encoding again takes {f['transformer']['50'] / f['model']['50']:.1f} times as long as the model alone (the paper: 7.3),"
            f" and {f['ratio_at_50']:.1f} times as long as observe + recommend, store included.",
            "",
        ]
    names = {
        "http": "3,416 items, embedded store",
        "large": "100,000 items, embedded store",
        "redis": "3,416 items, Redis (append-only, fsync always)",
    }
    if any(p in facts for p in names):
        lines += ["## Over HTTP", ""]
        lines += [
            "Half events, half recommendations (20 items), durable commits, 64 connections, load from a second process on the same two cores",
            "at a fixed rate; a latency counts from when the request was due. The middle of three runs by p90.",
            "",
            "| | workers | asked, req/s | answered, req/s | p50, ms | p90, ms | p99, ms | errors |",
            "|---|---:|---:|---:|---:|---:|---:|---:|",
        ]
    for part, title in names.items():
        for workers, rows in facts.get(part, {}).items():
            for r in rows:
                bad = r["requests"] - r["statuses"].get("200", 0)
                lines.append(
                    f"| {title} | {workers} | {r['asked']:,.0f} | {r['rate']:,.0f} | {r['p50']:.1f} | {r['p90']:.1f} | {r['p99']:.1f} | {bad} |"
                )
    if f := facts.get("huge"):
        r, index = f["load"], f["index"]
        lines += [
            "",
            f"1,000,000 items, approximate index ({index['candidates']:,} candidates scored exactly, recall@20 {index['recall@20']:.3f} against exact"
            f" over {index['queries']} users), one request after the other: p50 {r['p50']:.1f} ms, p90 {r['p90']:.1f} ms, p99 {r['p99']:.1f} ms.",
        ]
    if f := facts.get("soak"):
        memory = f["memory"]
        early, late = memory[len(memory) // 10], memory[-1]
        bad = f["requests"] - f["statuses"].get("200", 0)
        lines += [
            "",
            f"{f['minutes']:g} minutes at {f['asked']:,.0f} requests/s (80% of 2,000), one worker: {f['requests']:,} requests, {bad} errors, p90 {f['p90']:.1f} ms,"
            f" p99 {f['p99']:.1f} ms; the process's own memory {early / 1e6:.0f} MB after a tenth of the time, {late / 1e6:.0f} MB at the end.",
        ]
    if f := facts.get("million"):
        i = f["info"]
        lines += ["", "## A million users", ""]
        lines += [
            f"{i['users']:,} users with {i['events']:,} events: {i['bytes'] / 1e9:.1f} GB on disk ({i['bytes'] / i['users']:,.0f} bytes per user).",
            *([f"Imported from JSON lines in {f['import_seconds']:.0f} s."] if f["import_seconds"] else []),
            f"All states after a new artifact (`lrurec store rebuild`): {min(f['rebuilt']):,.0f} to {max(f['rebuilt']):,.0f} events/s.",
            f"From the command to the first answer of `/readyz`: {statistics.median(f['starts']):.1f} s.",
        ]
    for part, title in (("kills", "the server"), ("redis-kills", "Redis, under a server that stays")):
        if f := facts.get(part):
            lines += ["", f"## kill -9 of {title}, {f['kills']} times under load", ""]
            lines += [
                f"{f['acknowledged']:,} events acknowledged, {f['stored']:,} stored; {f['lost']} lost, {f['twice']} stored twice, {f['misplaced']} out of order.",
                f"`lrurec store verify`: {f['verify']}.",
            ]
            if "statuses" in f:
                lines.append(
                    "Answers: " + ", ".join(f"{count:,} times {code}" for code, count in f["statuses"].items()) + "."
                )
    (results / "serve.md").write_text("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", required=True, type=Path)
    parser.add_argument("--only", choices=list(PARTS), action="append")
    parser.add_argument("--seconds", type=float, default=15, help="per rate")
    parser.add_argument("--minutes", type=float, default=10, help="of the soak")
    parser.add_argument("--users", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--redis-kills", type=int, default=10)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    file = ROOT / "results" / "serve.json"
    facts = json.loads(file.read_text()) if file.exists() else {}
    for part in options.only or list(PARTS):
        found = PARTS[part](options)
        facts |= {"machine": machine(), part: found}
        write(facts)
        print(f"{part}: done", flush=True)


if __name__ == "__main__":
    main()
