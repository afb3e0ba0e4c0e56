"""Logs of any size with real structure, streamed. Knows how people choose, not how logs are read.

The world: items belong to topics, and inside a topic they form one long chain of series ("Copper
Lighthouse 1", "2", "3", ...). A few topics and the openings of chains are popular, most are rare.

A person follows THREADS series at once and takes turns between them, so the next item mostly continues
the series that was left longest ago. Now and then they open a new series from one of the topics they
like, and what they like drifts. Some choices are noise.

Whoever looks at popularity sees the head only; a first-order Markov chain sees the last item, which
belongs to another series than the next one; a model with memory sees all threads.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from lrurec.config import unknown
from lrurec.errors import SettingsError

THREADS = 4
TASTES = 2
CONTINUE, OPEN = 0.76, 0.18  # the rest is noise
TURN = 0.90  # continue the thread left longest ago, else any
SKIP = 0.08  # skip one item of the series
DRIFT = 0.03  # per event, a topic of the taste changes
TIE = 0.02  # per event, the same second as the one before
HEAD = 3.0  # how strongly openings are preferred (1: not at all)
TRIES = 4  # people rarely take what they had: they look again this often
_MEMORY = 2048  # bits per user that remember (roughly) what they had

START = 1_609_459_200  # 2021-01-01
SPAN = 2 * 365 * 86_400
SCHEMA = {"user_id": pl.Int64(), "item_id": pl.Int64(), "timestamp": pl.Int64()}
_BLOCK = 1 << 18  # users simulated together
_ROWS = 1 << 20  # rows handed on at a time


@dataclass(frozen=True)
class World:
    """How large the log is. Every user, every item and exactly `events` events occur in it
    (items only if there are ten events per item or more)."""

    users: int
    items: int
    events: int
    seed: int = 0
    spread: float = 0.8  # of the history lengths, as a standard deviation of their logarithm

    def __post_init__(self) -> None:
        if self.users < 1 or self.items < 1:
            raise SettingsError("--users and --items must be 1 or more")
        if not 0 <= self.spread <= 5:
            raise SettingsError("--spread must lie between 0 and 5")
        if self.events < self.users:
            raise SettingsError(f"{self.events:,} events are too few for {self.users:,} users: each needs one")

    @property
    def topics(self) -> int:
        return int(np.clip(round(np.sqrt(self.items) / 3), 1, 512))


PRESETS: dict[str, World] = {
    "sample": World(users=3_000, items=1_200, events=120_000, seed=7),
    "xlong": World(users=69_691, items=2_122_932, events=66_800_000, seed=1, spread=0.02),
}


def preset(name: str) -> World:
    """A preset by name; an unknown one is an error that suggests the right one."""
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return PRESETS[name]


def resized(world: World, **changes: int | float | None) -> World:
    """The world with some sizes changed; None leaves a size as it is."""
    return replace(world, **{k: v for k, v in changes.items() if v is not None})  # type: ignore[arg-type]


def log(world: World) -> Iterator[pl.DataFrame]:
    """The log in frames of user_id, item_id, timestamp: neither grouped by user nor sorted by time."""
    rng = np.random.default_rng([world.seed, 0])
    item_ids = _item_ids(world)
    user_ids = np.random.default_rng([world.seed, 2]).permutation(world.users).astype(np.int64) + 1
    unseen = np.random.default_rng([world.seed, 3]).permutation(world.items)
    stride = world.events // world.items if world.events >= 10 * world.items else 0
    lengths = _lengths(world, rng)
    done = 0
    for first in range(0, world.users, _BLOCK):
        block = lengths[first : first + _BLOCK]
        people = _People(world, np.sort(block)[::-1], rng)
        names = user_ids[first : first + _BLOCK][np.argsort(-block, kind="stable")]
        pending: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]] = []
        for items, times in people.steps():
            if stride:  # every item occurs: at regular intervals somebody stumbles upon one
                serial = np.arange(done, done + len(items))
                hit = (serial % stride == 0) & (serial // stride < world.items)
                items = np.where(hit, unseen[np.minimum(serial // stride, world.items - 1)], items)
            done += len(items)
            pending.append((names[: len(items)], item_ids[items], times))
            if sum(len(p[0]) for p in pending) >= _ROWS:
                yield _frame(pending)
                pending = []
        if pending:
            yield _frame(pending)


def _frame(parts: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]]) -> pl.DataFrame:
    columns = [np.concatenate(c) for c in zip(*parts, strict=True)]
    return pl.DataFrame(dict(zip(SCHEMA, columns, strict=True)), schema=SCHEMA)


def _item_ids(world: World) -> NDArray[np.int64]:
    """Public ids in random order: the order of ids says nothing about the world."""
    order: NDArray[np.int64] = np.random.default_rng([world.seed, 1]).permutation(np.arange(1, world.items + 1))
    return order


def _lengths(world: World, rng: np.random.Generator) -> NDArray[np.int64]:
    """Long-tailed lengths with exactly the wanted sum; at least two events each where there are enough."""
    least = 2 if world.events >= 2 * world.users else 1
    raw = np.exp(world.spread * rng.standard_normal(world.users))
    lengths: NDArray[np.int64] = np.maximum(least, np.floor(raw * (world.events / raw.sum()))).astype(np.int64)
    while (missing := world.events - int(lengths.sum())) != 0:
        able = np.flatnonzero(lengths > least) if missing < 0 else np.arange(world.users)
        some = rng.permutation(able)[: abs(missing)]
        lengths[some] += 1 if missing > 0 else -1
    return lengths


class _People:
    """A block of users, longest history first, choosing in step."""

    def __init__(self, world: World, lengths: NDArray[np.int64], rng: np.random.Generator) -> None:
        self.rng, self.lengths = rng, lengths
        self.bounds = np.linspace(0, world.items, world.topics + 1).astype(np.int64)
        self.sizes = np.diff(self.bounds)
        n = len(lengths)
        self.taste = self._popular_topics((n, TASTES))
        self.topic = self.taste[np.arange(n)[:, None], rng.integers(0, TASTES, (n, THREADS))]
        self.place = self._openings(self.topic)
        self.turn = np.zeros(n, np.int64)
        self.had = np.zeros((n, _MEMORY // 64), np.uint64)
        self.now = START + rng.integers(0, SPAN // 2, n)
        self.pause = SPAN / 2 / lengths

    def _popular_topics(self, shape: tuple[int, ...]) -> NDArray[np.int64]:
        return (len(self.sizes) * self.rng.random(shape) ** 2).astype(np.int64)

    def _openings(self, topic: NDArray[np.int64]) -> NDArray[np.int64]:
        return (self.sizes[topic] * self.rng.random(topic.shape) ** HEAD).astype(np.int64)

    def steps(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """One event of every user who still has one, again and again."""
        ends = np.searchsorted(-self.lengths, -np.arange(1, int(self.lengths[0]) + 1), side="right")
        for n in ends:
            yield self._step(int(n))

    def _step(self, n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        rng, rows = self.rng, np.arange(n)
        what, how = rng.random(n), rng.random((3, n))
        thread = np.where(how[0] < TURN, self.turn[:n], rng.integers(0, THREADS, n))
        opens = (what >= CONTINUE) & (what < CONTINUE + OPEN)
        follows = what < CONTINUE
        topic = self.topic[rows, thread]
        place = (self.place[rows, thread] + 1 + (how[1] < SKIP)) % self.sizes[topic]
        liked = self.taste[rows, (how[1] * TASTES).astype(np.int64)]
        topic = np.where(opens, liked, np.where(follows, topic, self._popular_topics((n,))))
        place = np.where(follows, place, self._openings(topic))
        for _ in range(TRIES):
            again = np.flatnonzero(self._have(rows, self.bounds[topic] + place))
            fresh = self._openings(topic[again])
            next_one = (place[again] + 1) % self.sizes[topic[again]]
            place[again] = np.where(follows[again], next_one, fresh)
        kept = opens | follows
        self.topic[rows[kept], thread[kept]] = topic[kept]
        self.place[rows[kept], thread[kept]] = place[kept]
        self.turn[:n] = np.where(kept, (thread + 1) % THREADS, self.turn[:n])
        drifts = np.flatnonzero(how[2] < DRIFT)
        self.taste[drifts, rng.integers(0, TASTES, len(drifts))] = self._popular_topics((len(drifts),))
        mean = np.where(rng.random(n) < 0.6, 90.0, 2.5 * self.pause[:n])
        gap = 1 + (mean * rng.standard_exponential(n)).astype(np.int64)
        self.now[:n] += np.where(rng.random(n) < TIE, 0, gap)
        items = self.bounds[topic] + place
        word, bit = _bit_of(items)
        self.had[rows, word] |= bit
        return items, self.now[:n].copy()

    def _have(self, rows: NDArray[np.int64], items: NDArray[np.int64]) -> NDArray[np.bool_]:
        word, bit = _bit_of(items)
        return np.asarray(self.had[rows, word] & bit, np.bool_)


def _bit_of(items: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Where an item is remembered: a word and a bit in it. Two items may share one; then a person skips one more."""
    place = (items * 2_654_435_761) % (1 << 32) * _MEMORY >> 32
    return place >> 6, np.uint64(1) << (place & 63).astype(np.uint64)


def _words(text: str) -> list[str]:
    return text.split()


_GENRES = _words("Mystery Comedy Western Romance Fantasy Travel Cooking History Horror Science Sports Music")
_FIRST = _words(
    "Amber Brass Cedar Cobalt Copper Coral Crimson Crystal Distant Ember Fallen Frozen Gentle Gilded Glass Golden"
    " Hidden Hollow Indigo Iron Ivory Jade Little Lost Lunar Marble Midnight Misty Northern Opal Paper Quiet Restless"
    " Ruby Rusty Sapphire Scarlet Silent Silver Southern Stolen Stormy Velvet Wandering Whispering Wild Winter Wooden"
)
_SECOND = _words(
    "Anchor Archive Bakery Bridge Canyon Carnival Castle Clock Compass Cottage Ferry Fountain Garden Harbour Horizon"
    " Island Kitchen Lagoon Lantern Library Lighthouse Market Meadow Mill Mirror Mountain Museum Observatory Orchard"
    " Orchestra Palace Pavilion Pier Prairie Railway River Sanctuary Station Studio Summit Tavern Temple Theatre Tower"
    " Valley Village Vineyard Windmill"
)
_PARTS = 6


def item_names(world: World) -> pl.DataFrame:
    """Invented names: item_id, title, topic. Six parts of a series follow each other."""
    bounds = np.linspace(0, world.items, world.topics + 1).astype(np.int64)
    topic = np.repeat(np.arange(world.topics), np.diff(bounds))
    place = np.arange(world.items) - bounds[topic]
    series_before = np.concatenate([[0], np.cumsum(-(-np.diff(bounds) // _PARTS))])
    series = series_before[topic] + place // _PARTS
    words = np.random.default_rng([world.seed, 4]).permutation(len(_FIRST) * len(_SECOND))
    titles, genres = [], []
    for t, p, s in zip(topic.tolist(), place.tolist(), series.tolist(), strict=True):
        again, which = divmod(s, len(words))
        first, second = divmod(int(words[which]), len(_SECOND))
        more = f" of District {again + 1}" if again else ""
        titles.append(f"{_FIRST[first]} {_SECOND[second]}{more} {p % _PARTS + 1}")
        number, genre = divmod(t, len(_GENRES))
        genres.append(_GENRES[genre] + (f" {number + 1}" if number else ""))
    names = pl.DataFrame({"item_id": _item_ids(world), "title": titles, "topic": genres})
    return names.sort("item_id")
