"""Small derived tables (weights, segments, trees) of random executions, and a naive reading of them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa


@dataclass
class Path:
    ids: list[int]
    at: list[int]  # columns of the targets
    mu: list[float]


@dataclass
class Tables:
    weights: pa.Table
    segments: pa.Table
    trees: pa.Table
    paths: dict[tuple[str, int], Path] = field(default_factory=dict)  # what a naive reader finds
    advantage: dict[str, float] = field(default_factory=dict)
    valid: set[str] = field(default_factory=set)


TREES = pa.schema(
    [
        ("group_id", pa.string()),
        ("execution_id", pa.string()),
        ("token_ids", pa.list_(pa.int32())),
        ("logprobs", pa.list_(pa.float32())),
    ]
)


def _random_nodes(
    rng: np.random.Generator, vocab: int, depth: int
) -> tuple[list[dict], list[int], list[float]]:
    """Context and output nodes in call order, the tree's ids, and its sampled log-probabilities."""
    ids: list[int] = []
    logprobs: list[float] = []
    nodes: list[dict] = []
    leaves = [-1]
    for _ in range(depth):  # a call: extends some node with context, then output
        parent = int(leaves[-1] if rng.random() < 0.6 else rng.integers(-1, len(nodes)))
        for sampled in (False, True):
            n = int(rng.integers(1, 7))
            node = {"parent": parent, "tree_start": len(ids), "length": n, "sampled": sampled}
            node["logprob_start"] = len(logprobs) if sampled else None
            node["logprobs"] = rng.normal(-3.9, 0.5, n).astype(np.float32).tolist() if sampled else []
            logprobs += node["logprobs"]
            node["ids"] = rng.integers(0, vocab, n).tolist()
            ids += node["ids"]
            nodes.append(node)
            parent = len(nodes) - 1
        leaves.append(parent)
    return nodes, ids, logprobs


def _admit_all(out: Tables, nodes: list[dict], group: str, name: str) -> tuple[list[dict], int, int]:
    """Segments of every root-to-leaf path, the number of targets, and the number of paths."""
    parents = {n["parent"] for n in nodes}
    owned: set[int] = set()
    rows: list[dict] = []
    total = paths = 0
    for path, leaf in enumerate(i for i in range(len(nodes)) if i not in parents):
        chain = []
        at = leaf
        while at >= 0:
            chain.append(at)
            at = nodes[at]["parent"]
        row = Path([], [], [])
        for at in reversed(chain):
            node = nodes[at]
            target = node["sampled"] and at not in owned
            rows.append(
                {
                    "group_id": group, "execution_id": name, "path": path, "node": at,
                    "call_id": f"c{at // 2}", "depth_start": len(row.ids), "length": node["length"],
                    "tree_start": node["tree_start"], "logprob_start": node["logprob_start"],
                    "sampled": node["sampled"], "target": target,
                }
            )  # fmt: skip
            if target:
                row.at += range(len(row.ids), len(row.ids) + node["length"])
                row.mu += node["logprobs"]
                total += node["length"]
            row.ids += node["ids"]
        owned |= set(chain)
        out.paths[name, path] = row
        paths = path + 1
    return rows, total, paths


def random_tables(
    seed: int, executions: int = 6, *, vocab: int = 50, group: str = "g0", depth: int = 5
) -> Tables:
    """Executions as random call trees; every root-to-leaf path is admitted, first come first owner.

    Log-probabilities lie about ln(1 / 50), near those of an untrained model of 50 words.
    """
    rng = np.random.default_rng(seed)
    weights, segments, trees = [], [], []
    out = Tables(pa.table({}), pa.table({}), pa.table({}))
    for index in range(executions):
        name = f"{group}/x{index:02d}"
        value = float(rng.normal())
        valid, advantage = bool(rng.random() < 0.9), 0.0 if rng.random() < 0.1 else float(rng.normal())
        nodes, ids, logprobs = _random_nodes(rng, vocab, depth)
        rows, total, paths = _admit_all(out, nodes, group, name)
        segments += rows
        trees.append({"group_id": group, "execution_id": name, "token_ids": ids, "logprobs": logprobs})
        weights.append(
            {
                "group_id": group, "execution_id": name, "index": index, "valid": valid,
                "assessment": "scored" if valid else "missing", "value": value if valid else None,
                "advantage": advantage if valid else None, "n_targets": total, "n_paths": paths,
                "token_weight": advantage / total if valid else None,
            }
        )  # fmt: skip
        if valid:
            out.valid.add(name)
            out.advantage[name] = advantage
    out.weights, out.segments = pa.Table.from_pylist(weights), pa.Table.from_pylist(segments)
    out.trees = pa.Table.from_pylist(trees, TREES)
    return out
