"""Shared by the benchmarks: the authors' model out of a checkout of their repository, which is read and run, never kept."""

import argparse
import importlib.util
from pathlib import Path
from typing import Any


def peer_model(path: str, items: int, dropout: float) -> Any:
    """The authors' model at the paper's size."""
    spec = importlib.util.spec_from_file_location("peer_model", Path(path) / "model" / "lru.py")
    assert spec and spec.loader
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    shape = argparse.Namespace(
        num_items=items,
        bert_hidden_units=64,
        bert_num_blocks=2,
        bert_dropout=dropout,
        bert_attn_dropout=dropout,
        dataset_code="any",
    )
    return module.LRU(shape)
