"""The server over real HTTP: what it answers, whom it refuses, what it survives."""

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import Run
from lrurec.errors import SettingsError
from lrurec.serving.artifact import Artifact
from lrurec.serving.asgi import Routes
from lrurec.serving.keys import read_keys
from lrurec.serving.openapi import description
from lrurec.serving.service import Live
from redis_server import wait_for
from server import Client, Reply, Server


@pytest.fixture(scope="module")
def shop(sample: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One server for the tests that leave it as it was."""
    with Server(sample, tmp_path_factory.mktemp("shop") / "store") as running:
        yield running


@pytest.fixture
def client(shop: Server) -> Any:
    made = shop.client()
    yield made
    made.close()


def items_of(reply: Reply) -> list[object]:
    assert reply.status == 200, reply
    return [line["item"] for line in reply.json["recommendations"]]


# What it answers


def test_it_answers_as_the_library_does(client: Client, sample: Path, tmp_path: Path) -> None:
    with Live(sample, tmp_path / "s") as live:
        for item in (5, 9, 2, 5):
            reply = client.post("/v1/events?recommend=7", {"user": "same", "item": item})
            live.observe("same", item)
            mine = live.recommend("same", 7)
            assert items_of(reply) == [r.item for r in mine]
            scores = [line["score"] for line in reply.json["recommendations"]]
            assert np.allclose(scores, [r.score for r in mine], atol=1e-5)
            assert [line["name"] for line in reply.json["recommendations"]] == [r.name for r in mine]
        assert items_of(client.recommend("same", "?k=7")) == [r.item for r in mine]
        seen = client.recommend("same", "?k=1000&filter_seen=false")
        assert set(items_of(seen)) > {5, 9, 2}
        allowed, denied = (
            client.recommend("same", "?allow=3,4&allow=5"),
            client.recommend("same", f"?deny={mine[0].item}"),
        )
        assert set(items_of(allowed)) == {3, 4} and mine[0].item not in items_of(denied)
        body = {"history": [5, "9", 2, 5], "k": 7}
        assert items_of(client.post("/v1/recommendations", body)) == [r.item for r in mine]
        similar = client.get("/v1/items/5/similar?k=3").json
        assert similar["item"] == 5
        similar = similar["similar"]
        assert [s["item"] for s in similar] == [r.item for r in live.similar_items(5, 3)]


def test_events(client: Client) -> None:
    assert client.observe("eve", 1, id="a").json["stored"] == 1
    again = client.observe("eve", 1, id="a").json
    assert (again["stored"], again["users"]) == (0, {"eve": {"stored": 0, "length": 1}})
    many = {"events": [{"user": "eve", "item": "2"}, {"user": "kim", "item": 3, "time": 5}, {"user": "eve", "item": 4}]}
    reply = client.post("/v1/events?recommend=2", many)
    assert reply.json["users"] == {"eve": {"stored": 2, "length": 3}, "kim": {"stored": 1, "length": 1}}
    assert len(reply.json["recommendations"]) == 2
    client.observe("kim", 7, time="2020-01-01T00:00:00Z")
    client.observe("kim", 8, time=1.5)  # late: before both
    events = client.get("/v1/users/kim").json["events"]
    assert [(e["item"], e["time"]) for e in events] == [(8, 1.5), (3, 5.0), (7, 1577836800.0)]
    assert client.get("/v1/users/kim?last=1").json["events"] == events[-1:]
    assert client.get("/v1/users/kim?last=0").json["events"] == []


def test_a_user_is_seen_and_forgotten(client: Client) -> None:
    client.observe("tom", 3)
    found = client.get("/v1/users/tom?state=true").json
    assert found["length"] == 1 and found["events"][0]["name"]
    assert np.array(found["state"]).shape == (2, 128)
    assert client.ask("DELETE", "/v1/users/tom").json == {"user": "tom", "forgotten": True}
    assert client.ask("DELETE", "/v1/users/tom").json == {"user": "tom", "forgotten": False}
    gone = client.get("/v1/users/tom")
    assert gone.status == 404 and "tom" in gone.json["error"]
    stranger = client.recommend("tom")
    assert stranger.json["known"] is False and len(stranger.json["recommendations"]) == 10


@pytest.mark.parametrize("user", ["a/b", "a b", "ü", "?k=3", "x%2Fy", "a,b", "..", "💡", "recommendations", "<b>"])
def test_any_text_is_a_user(client: Client, user: str) -> None:
    assert client.observe(user, 2).json["users"] == {user: {"stored": 1, "length": 1}}
    found = client.recommend(user).json
    assert found["user"] == user and found["known"]


def test_search(client: Client) -> None:
    popular = client.get("/v1/items?limit=5").json["items"]
    assert len(popular) == 5
    name = popular[3]["name"]
    found = client.get(f"/v1/items?search={name.upper().replace(' ', '%20')}").json["items"]
    assert popular[3] in found
    assert client.get("/v1/items?search=no-such-thing").json == {"items": []}


def test_the_model(client: Client, sample: Path) -> None:
    found = client.get("/v1/model").json
    assert found["items"] == 1200 and found["index"] == "exact" and np.array(found["decay"]).shape == (2, 128)
    assert found["artifact"] == Artifact.open(sample).id
    assert (found["memory"], found["learns"], found["learned"]) == (False, False, 0)


MISTAKES: dict[str, tuple[str, str, Any, int, str]] = {
    "unknown item": ("POST", "/v1/events", {"user": "u", "item": "zzz"}, 404, "item 'zzz' is not in the artifact"),
    "unknown items": ("GET", "/v1/users/u/recommendations?deny=zz,yy", None, 404, "items 'zz', 'yy' are not"),
    "no json": ("POST", "/v1/events", b"{", 400, "not JSON"),
    "not utf-8": ("POST", "/v1/events", b'{"user": "\xff", "item": 1}', 400, "not JSON"),
    "deep": ("POST", "/v1/events", b"[" * 100_000, 400, "body"),
    "no item": ("POST", "/v1/events", {"user": "u"}, 400, "item"),
    "typo": ("POST", "/v1/events", {"user": "u", "item": 1, "tmie": 3}, 400, "tmie"),
    "empty user": ("POST", "/v1/events", {"user": "", "item": 1}, 400, "user"),
    "long user": ("POST", "/v1/events", {"user": "ü" * 300, "item": 1}, 400, "500 bytes"),
    "half a character": ("POST", "/v1/events", b'{"user": "\\ud800", "item": 1}', 400, ""),
    "no events": ("POST", "/v1/events", {"events": []}, 400, "events"),
    "many events": ("POST", "/v1/events", {"events": [{"user": "u", "item": 1}] * 1001}, 400, "1000"),
    "bad time": ("POST", "/v1/events", {"user": "u", "item": 1, "time": "soon"}, 400, "soon"),
    "far time": ("POST", "/v1/events", {"user": "u", "item": 1, "time": 1e300}, 400, "seconds since 1970"),
    "large k": ("GET", "/v1/users/u/recommendations?k=1001", None, 400, "1 to 1000"),
    "many allowed": ("GET", "/v1/users/u/recommendations?allow=" + ",".join(["1"] * 201), None, 400, "200"),
    "typo in a parameter": (
        "GET",
        "/v1/users/u/recommendations?filter_sen=1",
        None,
        400,
        "did you mean 'filter_seen'?",
    ),
    "no k": ("GET", "/v1/users/u/recommendations?k=x", None, 400, "whole number"),
    "maybe": ("GET", "/v1/users/u/recommendations?filter_seen=maybe", None, 400, "true or false"),
    "no route": ("GET", "/v2", None, 404, "no /v2 here"),
    "no user": ("GET", "/v1/users/", None, 404, "no /v1/users/ here"),
    "method": ("PUT", "/v1/events", {}, 405, "POST"),
    "artifact": ("POST", "/v1/artifact", {"path": "/nowhere"}, 400, "/nowhere"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_end_in_a_sentence(client: Client, name: str) -> None:
    method, path, body, status, words = MISTAKES[name]
    reply = client.ask(method, path, body)
    assert (reply.status, words in reply.json["error"]) == (status, True), reply
    assert client.get("/v1/users/u").status == 404  # nothing was stored


def test_bodies_are_json_and_not_too_large(client: Client, shop: Server) -> None:
    assert client.ask("POST", "/v1/events", b"{}", {"content-type": "text/plain"}).status == 415
    assert client.post("/v1/events", b" " * (5 << 20)).status == 413
    with socket.create_connection(("127.0.0.1", shop.port)) as chunked:  # a length that nobody told
        chunked.sendall(b"POST /v1/events HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n")
        chunked.sendall(b"transfer-encoding: chunked\r\n\r\n")
        for _ in range(8):
            chunked.sendall(b"100000\r\n" + b" " * 0x100000 + b"\r\n")
        chunked.sendall(b"0\r\n\r\n")
        assert b" 413 " in chunked.recv(1000)
    assert client.get("/healthz").status == 200


def test_only_as_localhost(client: Client) -> None:
    assert client.get("/v1/model", host="evil.example").status == 403
    assert client.get("/v1/model", host="127.0.0.1:80").status == 200


def test_metrics_and_logs(client: Client, shop: Server) -> None:
    client.observe("mia", 1)
    client.recommend("mia")
    text = client.get("/metrics").json
    for line in (
        r'lrurec_request_seconds_bucket\{le="0.007",route="POST /v1/events",status="200"\} [1-9]',
        r"lrurec_events_stored_total [1-9]",
        r"lrurec_store_append_seconds_count [1-9]",
        r"lrurec_requests_in_flight \d",
        r"lrurec_requests_refused_total 0",
        r'lrurec_state_cache_total\{result="hit"\} [1-9]',
        r"lrurec_batch_size_count [1-9]",
    ):
        assert re.search(line, text), line
    assert all(json.loads(line)["event"] for line in shop.log)


def test_the_description_names_every_route(client: Client) -> None:
    told = client.get("/openapi.json").json
    assert told == json.loads(json.dumps(description("1")))
    routes = {(method.upper(), path) for path, methods in told["paths"].items() for method in methods}
    assert routes | {("GET", "/"), ("GET", "/openapi.json")} == set(EVERY)


EVERY = {
    ("POST", "/v1/events"): "write",
    ("GET", "/v1/users/{id}/recommendations"): "read",
    ("POST", "/v1/recommendations"): "read",
    ("GET", "/v1/users/{id}"): "read",
    ("DELETE", "/v1/users/{id}"): "write",
    ("GET", "/v1/items"): "read",
    ("GET", "/v1/items/{id}/similar"): "read",
    ("GET", "/v1/model"): "read",
    ("POST", "/v1/artifact"): "admin",
    ("GET", "/metrics"): "read",
    ("GET", "/openapi.json"): None,
    ("GET", "/healthz"): None,
    ("GET", "/readyz"): None,
    ("GET", "/"): None,
}


def test_it_runs_without_torch(shop: Server, client: Client) -> None:
    assert client.observe("ann", 1).status == 200
    assert "torch" not in Path(f"/proc/{shop.process.pid}/maps").read_text()


# Whom it refuses


def test_every_route_refuses_without_the_right_key(sample: Path, tmp_path: Path) -> None:
    keys = {role: f"{role}-" + "k" * 20 for role in ("read", "write", "admin")}
    (tmp_path / "keys").write_text("# ours\n" + "\n".join(f"{role} {key}" for role, key in keys.items()))
    rank = ["read", "write", "admin"]
    with Server(sample, tmp_path / "s", "--keys", str(tmp_path / "keys"), "--host", "0.0.0.0") as server:
        for (method, path), wanted in EVERY.items():
            body: dict[str, str] | None = {} if method == "POST" else None
            for role, key in {**keys, "none": None, "wrong": "x" * 24}.items():
                client = server.client(key)
                status = client.ask(method, path.format(id="1"), body).status
                client.close()
                if wanted is None:
                    assert status == 200
                elif role in ("none", "wrong"):
                    assert status == 401, (method, path, role)
                elif rank.index(role) < rank.index(wanted):
                    assert status == 403, (method, path, role)
                else:
                    assert status in (200, 400, 404), (method, path, role, status)
        other = server.client().get("/v1/model", **{"x-api-key": keys["read"]})
        assert other.status == 200


def test_keys_from_the_environment_and_bad_ones(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LRUREC_KEYS", f"read:{'a' * 16},write {'b' * 16}")
    keys = read_keys(None)
    assert [keys.allows(k * 16, "write") for k in "abc"] == [False, True, None]
    both = "read " + "a" * 16 + "\nadmin " + "a" * 16
    for text, words in (
        ("read", "line 1"),
        ("root " + "a" * 16, "line 1"),
        ("\nread short", "line 2.*too short"),
        ("# none\n", "has no keys"),
        (both, "line 2 .* another role"),
    ):
        (tmp_path / "k").write_text(text)
        with pytest.raises(SettingsError, match=words):
            read_keys(str(tmp_path / "k"))
    with pytest.raises(SettingsError, match="cannot be read"):
        read_keys(str(tmp_path / "none"))


def test_mistakes_on_the_command_line(sample: Path, tmp_path: Path, run: Run, shop: Server) -> None:
    store = ("--store", tmp_path / "s")
    for arguments, words in (
        ((sample, *store, "--host", "0.0.0.0"), "listens on loopback only"),
        ((sample, *store, "--port", shop.port), "choose another --host or --port"),
        ((sample, *store, "--port", "http"), "not a port"),
        ((tmp_path / "no", *store, "--port", 0), "no"),
        ((sample, *store, "--keys", tmp_path / "none"), "--keys"),
        ((sample,), "--store"),
        ((sample, "--store", sample / "manifest.json", "--port", 0), "manifest.json"),
    ):
        done = run("serve", *arguments)
        assert done.code == 2 and words in done.err and done.err.count("\n") == 1, done


# What it survives


def test_too_many_at_once(sample: Path, tmp_path: Path) -> None:
    with Server(sample, tmp_path / "s", "--queue", "2") as server:
        clients = [server.client() for _ in range(24)]
        with ThreadPoolExecutor(24) as pool:
            replies = [r for _ in range(10) for r in pool.map(lambda c: c.observe("u", 1), clients)]
        codes = {r.status for r in replies}
        assert codes == {200, 503}
        assert all(
            r.headers["retry-after"] == "1" and "try again" in r.json["error"] for r in replies if r.status == 503
        )
        length = clients[0].get("/v1/users/u").json["length"]
        assert length == sum(r.status == 200 for r in replies)
        assert clients[0].get("/healthz").status == 200


def test_slow_and_vanished_clients_harm_nobody(shop: Server, client: Client) -> None:
    head = b"POST /v1/events HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    slow = []
    for k in range(150):
        s = socket.create_connection(("127.0.0.1", shop.port))
        s.sendall(head[: 20 + k] if k % 2 else head + b'content-length: 40\r\n\r\n{"user": ')
        slow.append(s)
    for _ in range(50):  # asked, and gone before the answer
        s = socket.create_connection(("127.0.0.1", shop.port))
        s.sendall(head + b'content-length: 30\r\n\r\n{"user": "gone", "item": 12   }')
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        s.close()
    for _ in range(20):
        assert client.observe("fine", 1).status == 200
        assert client.recommend("fine").status == 200
    slow[0].settimeout(30)
    assert b" 408 " in slow[0].recv(1000)  # a body that does not come
    for s in slow:
        s.close()
    assert not [line for line in shop.log if "broken" in line]


def hammer(server: Server, threads: int, until: threading.Event, prefix: str = "") -> list[list[tuple[str, int]]]:
    """Events until told to stop: per thread, (event id, status; 0 for a connection that broke)."""

    def work(thread: int) -> list[tuple[str, int]]:
        client, done = server.client(), []
        k = 0
        while not until.is_set():
            name = f"{prefix}{thread}-{k}"
            try:
                done.append((name, client.observe(f"user{thread}", 1 + k % 1000, id=name, time=k + 1).status))
            except (OSError, http.client.HTTPException):
                done.append((name, 0))
                break
            k += 1
        client.close()
        return done

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, range(threads)))


@pytest.mark.parametrize("options", [(), ("--workers", "2")])
def test_a_closed_terminal_stops_it(sample: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    server = Server(sample, tmp_path / "s", *options)
    wait_ready(server, 2 if options else 1)
    assert server.client().observe("ann", 1).status == 200
    assert server.stop(signal.SIGHUP) == 0
    assert not [line for line in server.log if "trace" in line]


def test_workers_end_with_their_parent(sample: Path, tmp_path: Path) -> None:
    server = Server(sample, tmp_path / "s", "--workers", "2")
    wait_ready(server, 2)
    pids = workers_of(server)
    os.kill(server.process.pid, signal.SIGKILL)
    assert len(pids) == 2 and wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    server.stop()


def test_a_worker_that_cannot_start_harms_no_other(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained / "artifact", tmp_path / "a")
    with Server(tmp_path / "a", tmp_path / "s", "--workers", "2") as server:
        wait_ready(server, 2)
        (tmp_path / "a").rename(tmp_path / "gone")
        os.kill(workers_of(server)[0], signal.SIGKILL)
        assert wait_for(lambda: any('"cannot start"' in line for line in server.log))
        assert server.client().get("/v1/model").status == 200
        (tmp_path / "gone").rename(tmp_path / "a")
        assert wait_for(lambda: sum('"event": "ready"' in line for line in server.log) >= 3)
        assert all(json.loads(line) for line in server.log)


def test_a_store_that_is_removed(sample: Path, tmp_path: Path) -> None:
    with Server(sample, tmp_path / "s") as server:
        client = server.client()
        assert client.observe("ann", 1).status == 200 and client.get("/readyz").status == 200
        shutil.rmtree(tmp_path / "s")
        assert client.observe("ann", 2).status == 503
        assert client.get("/readyz").status == 503 and client.ask("HEAD", "/healthz").status == 200


def test_sigterm_drains(sample: Path, tmp_path: Path) -> None:
    server, stop = Server(sample, tmp_path / "s"), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(hammer, server, 6, stop)
        time.sleep(1)
        assert server.stop() == 0
        stop.set()
        done = running.result()
    assert all(status in (200, 0) for rows in done for _, status in rows)
    assert '"closed"' in server.log[-1]
    with Live(sample, tmp_path / "s") as live:
        for thread, rows in enumerate(done):
            record = live.store.read(f"user{thread}", live.served.states)
            assert record is not None
            assert len(record.events) >= sum(status == 200 for _, status in rows) > 0


def test_killed_under_load_nothing_acknowledged_is_lost(sample: Path, tmp_path: Path, run: Run) -> None:
    acknowledged: dict[int, list[int]] = {k: [] for k in range(4)}
    sent: dict[int, int] = dict.fromkeys(range(4), 0)
    for turn in range(3):
        server = Server(sample, tmp_path / "s", *(("--workers", "2") if turn == 1 else ()))

        def write(thread: int, port: int = server.port) -> None:
            client = Client(port)
            try:
                while True:
                    n = sent[thread] = sent[thread] + 1
                    if client.observe(f"user{thread}", n, id=str(n), time=n).status == 200:
                        acknowledged[thread].append(n)
            except (OSError, http.client.HTTPException):
                return
            finally:
                client.close()

        threads = [threading.Thread(target=write, args=(k,)) for k in range(4)]
        for t in threads:
            t.start()
        time.sleep(0.4 + 0.2 * turn)
        if turn == 1:
            for pid in workers_of(server):
                os.kill(pid, signal.SIGKILL)
        server.stop(signal.SIGKILL if turn != 1 else signal.SIGTERM)
        for t in threads:
            t.join()
    with Live(sample, tmp_path / "s") as live:
        for thread in range(4):
            record = live.store.read(f"user{thread}", live.served.states)
            assert record is not None
            found = [e.time // 1_000_000 for e in record.events]
            assert found == sorted(set(found)) and set(acknowledged[thread]) <= set(found)
            assert [int(e.item) for e in record.events] == found
    assert sum(map(len, acknowledged.values())) > 20
    done = run("store", "verify", tmp_path / "s", "--artifact", sample)
    assert done.code == 0 and "none differs" in done.out


def workers_of(server: Server) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(server.process.pid)], capture_output=True, text=True)
    return [int(pid) for pid in found.stdout.split()]


def test_a_worker_that_dies_is_replaced(sample: Path, tmp_path: Path) -> None:
    with Server(sample, tmp_path / "s", "--workers", "2") as server:
        wait_ready(server, 2)
        first = workers_of(server)
        assert len(first) == 2
        os.kill(first[0], signal.SIGKILL)
        for _ in range(300):
            now = workers_of(server)
            if len(now) == 2 and first[0] not in now:
                break
            time.sleep(0.1)
        assert len(workers_of(server)) == 2 and first[0] not in workers_of(server)
        for _ in range(20):
            client = server.client()
            assert client.observe("u", 1).status == 200
            client.close()
        assert server.stop() == 0


def wait_ready(server: Server, count: int) -> None:
    for _ in range(600):
        if sum('"event": "ready"' in line for line in server.log) >= count:
            return
        time.sleep(0.1)
    raise AssertionError(server.log)


@pytest.mark.parametrize("workers", [1, 2])
def test_another_artifact_and_no_request_fails(trained: Path, tmp_path: Path, workers: int) -> None:
    options = ("--workers", str(workers)) if workers > 1 else ()
    old_id, new = Artifact.open(trained / "artifact").id, _changed(trained / "artifact", tmp_path / "new")
    with Server(trained / "artifact", tmp_path / "s", *options) as server:
        wait_ready(server, workers)
        stop, statuses = threading.Event(), list[int]()

        def ask(thread: int) -> None:
            while not stop.is_set():
                client = server.client()  # new connections reach every worker
                statuses.append(client.observe(f"u{thread}", "i03").status)
                statuses.append(client.recommend(f"u{thread}").status)
                client.close()

        threads = [threading.Thread(target=ask, args=(k,)) for k in range(3)]
        for t in threads:
            t.start()
        time.sleep(0.5)
        reply = server.client().post("/v1/artifact", {"path": str(new)})
        assert reply.status == 200 and reply.json["workers"] == workers, reply
        assert reply.json["artifact"] != old_id
        time.sleep(0.3)
        stop.set()
        for t in threads:
            t.join()
        assert set(statuses) == {200} and len(statuses) > 20
        ids = set()
        for _ in range(12):
            client = server.client()
            ids.add(client.get("/v1/model").json["artifact"])
            client.close()
        assert ids == {reply.json["artifact"]}
        bad = server.client().post("/v1/artifact", {"path": str(tmp_path / "none")})
        assert bad.status == 400
        broken = _changed(trained / "artifact", tmp_path / "broken")
        raw = bytearray((broken / "table.npy").read_bytes())
        raw[-1] ^= 1
        (broken / "table.npy").write_bytes(raw)
        refused = server.client().post("/v1/artifact", {"path": str(broken)})
        assert refused.status == 400 and "table.npy" in refused.json["error"]
        assert server.client().get("/v1/model").json["artifact"] == reply.json["artifact"]


def _changed(artifact: Path, out: Path) -> Path:
    """The same artifact with another bias, and so with another id."""
    from lrurec.folder import new_folder, write_manifest

    manifest = json.loads((artifact / "manifest.json").read_text())
    with new_folder(out, "artifact") as work:
        for file in artifact.iterdir():
            if file.name != "manifest.json":
                (work / file.name).write_bytes(file.read_bytes())
        np.save(work / "bias.npy", np.load(artifact / "bias.npy") + np.float32(1))
        write_manifest(work, {k: v for k, v in manifest.items() if k not in ("files", "seal")}, sealed=True)
    return out


def test_routes_take_ids_from_paths() -> None:
    routes = Routes()

    async def nothing(asked: Any) -> Any: ...

    routes.add("GET", "/a/{id}", nothing)
    routes.add("GET", "/a/{id}/b", nothing)
    assert sorted(routes) == [("GET", "/a/{id}"), ("GET", "/a/{id}/b")]


def test_the_api_fuzzed_from_its_description(sample: Path, tmp_path: Path) -> None:
    with Server(sample, tmp_path / "s") as server:
        command = [str(Path(sys.executable).parent / "schemathesis"), "run", f"{server.url}/openapi.json"]
        done = subprocess.run(
            [
                *command,
                "--checks",
                "not_a_server_error,status_code_conformance,response_schema_conformance,content_type_conformance",
                "--max-examples",
                "25",
                "--seed",
                "1",
                "--request-timeout",
                "20",
                "--no-color",
            ],
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        assert not [line for line in server.log if '"broken"' in line]
        assert server.client().get("/readyz").status == 200
