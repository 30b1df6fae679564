"""The names that arguments take, as types: an editor offers them, and a type checker refuses others.

They hold for checkers only. A program can also compute a name as a string, which the call checks when it runs.
"""

from __future__ import annotations

from typing import Literal

__all__ = ["Algorithm", "Codec", "Collective", "FoldOrder", "Operation", "Transport"]

Operation = Literal["sum", "average", "product", "min", "max", "bit_and", "bit_or", "bit_xor"]
"""How a collective folds elements; the bitwise ones are for integers."""

Collective = Literal[
    "all_reduce", "reduce", "broadcast", "reduce_scatter", "all_gather", "gather", "scatter", "all_to_all", "barrier"
]
"""A collective, by the name of its method."""

Codec = Literal["bf16", "fp16", "int8", "sign", "exact", "auto"] | str
"""A codec. With a parameter it is a string such as ``"topk:0.01"``; ``"auto"`` lets the plan choose."""

Algorithm = (
    Literal[
        "ring",
        "radix",
        "sharded",
        "doubling",
        "one_shot",
        "star",
        "tree",
        "trees",
        "reduction_server",
        "mixed",
        "chain",
        "double_tree",
        "hierarchical",
    ]
    | str
)
"""An algorithm of all-reduces. With parameters it is a string such as ``"radix(8,8)"``."""

Transport = Literal["shm", "tcp"]
"""How processes exchange data: shared memory, within a host, or TCP."""

FoldOrder = Literal["ranks", "hosts", "sites"]
"""The order in which numbers are added: by rank, within each host first, or within each site first."""
