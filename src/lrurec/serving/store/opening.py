"""From what stands behind --store to a store. Knows the kinds there are."""

from pathlib import Path

from lrurec.errors import MissingPartError, SettingsError
from lrurec.serving.store.base import Store
from lrurec.serving.store.embedded import EmbeddedStore


def open_store(where: str | Path, *, bound: int = 0, create: bool = True) -> Store:
    """A folder, or a Redis address such as redis://localhost:6379/0."""
    if not str(where).startswith(("redis://", "rediss://", "unix://")):
        if "://" in str(where):
            raise SettingsError(f"'{where}' is no store; give a folder, or redis://, rediss:// or unix://")
        return EmbeddedStore(where, bound=bound, create=create)
    try:
        from lrurec.serving.store.redis import RedisStore
    except ImportError:
        raise MissingPartError("a Redis store needs its client; pip install 'lrurec[serve]'") from None
    return RedisStore(str(where), bound=bound)
