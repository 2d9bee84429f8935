"""The gates of the Tree-LSTM as the peers lay them out: the forget gate apart from the others.

A leaf has no forget gate, and an inner vertex has one a child, so an expert makes two products.
"""

from __future__ import annotations

import numpy as np

from vertexrt.bench.measure import Arrays

KEPT = ("embedding", "u_iou", "u_f", "v")


def split_gates(parameters: Arrays) -> Arrays:
    """Return the parameters of the vertex function with `w` and `b` split in two each."""
    w_i, w_f, w_o, w_u = np.split(parameters["w"], 4)
    b_i, b_f, b_o, b_u = np.split(parameters["b"], 4)
    found = {name: parameters[name] for name in KEPT}
    found |= {"w_iou": np.concatenate([w_i, w_o, w_u]), "w_f": w_f}
    return found | {"b_iou": np.concatenate([b_i, b_o, b_u]), "b_f": b_f}


def join_gates(values: Arrays) -> Arrays:
    """Return the parameters by the names of the vertex function: the inverse of `split_gates`."""
    w_i, w_o, w_u = np.split(values["w_iou"], 3)
    b_i, b_o, b_u = np.split(values["b_iou"], 3)
    found = {name: values[name] for name in KEPT}
    found["w"] = np.concatenate([w_i, values["w_f"], w_o, w_u])
    found["b"] = np.concatenate([b_i, values["b_f"], b_o, b_u])
    return found
