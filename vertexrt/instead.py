"""What to write in place of names that there are not: PyTorch's, and those of earlier versions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from vertexrt.errors import MissingAttributeError, nearest

MOST_LISTED = 24  # names that an error lists
_STEP = "loss = net.step(batch, optimizer), which goes forward and back and updates"
_COMPILED = "net = vrt.compile(function): a network"
_ON_DEVICE = "vrt.compile(function, device=..., dtype=...)"
_LAYER = "vt.LSTM, vt.GRU or vt.RNN over whole sequences, or torch.nn's cell in a loop of yours"
# Functions that have the name that NumPy or PyTorch gives them.
SAME = (
    "abs argmax exp floor log log_softmax logsumexp max mean relu sigmoid softmax split sqrt sum "
    "tanh"
)
# By what users call the object, and by name; "" is for all others.
INSTEAD: dict[str, dict[str, str]] = {
    "net": {
        "forward": "net(batch), or net.record(batch) where gradients are to come",
        "submit": "net(batch), whose arrays are waited for when they are read",
        "backward": "run = net.record(batch), then run.backward()",
        "keeps": "run = net.record(batch): a run is kept as long as it lives",
        "on_device": "net(batch, arrays='device'), and the same with record, plan and step",
        "outputs": "loss = net.step(batch, optimizer, outputs=[...]), then loss.outputs",
        "steps_under_way": "net.sync(), which waits for all steps",
        "set_parameters": "net.load_state({'parameters': values})",
        "random_state": "net.state()['random']",
        "set_random_state": "net.load_state({'random': state})",
        "state_dict": "net.state()",
        "load_state_dict": "net.load_state(state)",
        "named_parameters": "net.parameters.items()",
        "train": "net.record(batch), in which dropout drops, or net.step(batch, optimizer)",
        "eval": "net(batch), in which dropout does not drop",
        "predict": "net(batch)",
        "fit": f"for batch in loader: {_STEP}",
        "loss": f"net(batch, outputs=['loss'])['loss'], or {_STEP}",
        "save": "vrt.save_checkpoint(path, net)",
        "load": "net.load_state({'parameters': vrt.load_checkpoint(path).parameters})",
        "requires_grad_": "vrt.Parameter(shape, trainable=False), or freeze by groups",
        **dict.fromkeys(("to", "cuda", "cpu", "half", "float", "double"), _ON_DEVICE),
    },
    "loss": {
        "backward": f"{_STEP}; or run = net.record(batch), then run.backward()",
        "": "float(loss): it is a number",
    },
    "outputs": {
        "backward": "run = net.record(batch), then run.backward()",
        "": "outputs['h'], an array; outputs are arrays by name",
    },
    "optimizer": {
        "zero_grad": "nothing: net.step keeps no gradients; net.zero_grad() is for net.record",
        "state_dict": "optimizer.state()",
        "load_state_dict": "optimizer.load_state(state)",
        "param_groups": "optimizer.lr = rate, or optimizer.groups = {pattern: {'lr': rate}}",
        "add_param_group": "groups={pattern: {'lr': rate}} when it is made",
    },
    "function": dict.fromkeys(
        ("step", "record", "plan", "explain", "train", "eval", "to", "cuda", "state_dict"),
        _COMPILED,
    ),
    "graph": {
        "to": "nothing: networks copy batches to their device",
        "cuda": "nothing: networks copy batches to their device",
        "x": "graph.pulls['x']",
        "edge_index": "graph.child, graph.child_ptr; or InputGraph.from_edges to build one",
        "edge_attr": "graph.edge_pulls",
        "nodes": "graph.num_vertices, or graph.to_networkx()",
        "num_nodes": "graph.num_vertices",
        "edges": "graph.num_edges, or graph.to_networkx()",
        "batch_size": "graph.num_graphs",
    },
    "x": {
        **{name: f"vrt.{name}(x)" for name in SAME.split()},
        **dict.fromkeys(("maximum", "minimum", "dot"), "vrt.maximum, vrt.minimum or vrt.dot(x, y)"),
        **dict.fromkeys(("concatenate", "cat", "hstack", "append"), "vrt.concat(x, y)"),
        **dict.fromkeys(("matmul", "mm", "mv", "linear", "einsum"), "w @ x + b, of parameters"),
        **dict.fromkeys(("T", "t", "transpose"), "w.T @ x, of a parameter"),
        **dict.fromkeys(
            ("view", "reshape", "unsqueeze", "squeeze", "flatten"),
            "x as it is: values are of one vertex and have no batch axis",
        ),
        **dict.fromkeys(("size", "dim", "ndim"), "x.shape"),
        **dict.fromkeys(("item", "numpy", "tolist"), "self.push(name, x), then net(batch)[name]"),
        **dict.fromkeys(("data", "grad", "weight"), "net.parameters[name] or net.gradients[name]"),
        "detach": "vrt.stop_gradient(x)",
        "clamp": "vrt.clip(x, low, high)",
        "where": "vrt.where(mask, x, y)",
        "stack": "vrt.stack(a, b)",
        "dropout": "vrt.random.dropout(x, p)",
        "cross_entropy": "vrt.losses.cross_entropy(x, label)",
        "mse_loss": "vrt.losses.squared_error(x, y)",
        "embedding": "vrt.embed(w, index)",
        "": "vrt.sum(x), vrt.concat(x, y) and so on; constants are frozen parameters",
    },
    "vrt": {
        **dict.fromkeys(("no_grad", "inference_mode"), "net(batch), which keeps nothing"),
        **dict.fromkeys(("tensor", "array"), "self.pull(name, shape), or vrt.Parameter(shape)"),
        "manual_seed": "vrt.compile(function, seed=...)",
        "save": "vrt.save_checkpoint(path, net)",
        "load": "vrt.load_checkpoint(path), or vrt.data.load for data",
        "optim": "vrt.Adam(lr=...) and the like",
        "Module": "vrt.VertexFunction, or vrt.Model; vertexrt.torch.Module is for PyTorch",
        "Graph": "vrt.InputGraph",
        "Pulled": "vrt.Rows",
        "matmul": "w @ x",
        "cat": "vrt.concat",
        "torch": "import vertexrt.torch as vt",
        **{
            name: f"vrt.{home}.{name}"
            for home, names in {
                "losses": "cross_entropy binary_cross_entropy_with_logits hinge_loss squared_error",
                "random": "dropout normal uniform",
                "nn": "Linear Embedding LSTMCell GRUCell softplus silu gelu elu leaky_relu",
                "data": "Loader Dataset Vocabulary from_networkx",
            }.items()
            for name in names.split()
        },
    },
    "vrt.nn": {
        **dict.fromkeys(("LSTM", "GRU", "RNN"), "a cell, vrt.nn.LSTMCell, along chains"),
        "Module": "vrt.VertexFunction, or vrt.Model",
        "Parameter": "vrt.Parameter",
        "CrossEntropyLoss": "vrt.losses.cross_entropy",
        "MSELoss": "vrt.losses.squared_error",
        "Dropout": "vrt.random.dropout",
    },
    "vrt.losses": {"mse_loss": "vrt.losses.squared_error", "nll_loss": "vrt.losses.cross_entropy"},
    "--": {
        **dict.fromkeys(("--learning-rate", "--learning_rate"), "--lr"),
        **dict.fromkeys(("--gpu", "--cuda"), "--device cuda"),
        "--bs": "--batch-size",
        **dict.fromkeys(("--save", "--output", "--checkpoint"), "--out"),
        **dict.fromkeys(("--optim", "--opt"), "--optimizer"),
        "--model": "the model first: vertexrt train tree-lstm",
        "--workers": "--threads",
    },
    "vt": dict.fromkeys(("LSTMCell", "GRUCell", "RNNCell"), _LAYER),
}


def in_place(owner: str, name: str) -> str:
    """Return what to write in place of a name; "" where nothing is known."""
    table = INSTEAD.get(owner, {})
    return table.get(name) or table.get("", "")


def no_name(owner: str, name: str, names: Iterable[str]) -> AttributeError:
    """Return the error for a name that there is not.

    Args:
        owner: a key of INSTEAD, what users call the object.
        names: those that it has; private ones are not told.
    """
    if name.startswith("_"):  # what Python and its libraries look for
        return AttributeError(name)
    known = [each for each in names if not each.startswith("_")]
    expected, found = "a name that it has", in_place(owner, name)
    if not found and len(known) <= MOST_LISTED:
        expected = f"one of {', '.join(known)}"
    action = f"write {found}" if found else f"correct the name.{nearest(name, known)}"
    return MissingAttributeError.at(owner, f"there is no {owner}.{name}", expected, action)


def instead(owner: str) -> Callable[[Any, str], NoReturn]:
    """Make the `__getattr__` of a class, which says what to write."""

    def refuse(self: object, name: str) -> NoReturn:
        raise no_name(owner, name, dir(type(self)))

    return refuse


def instead_in(owner: str, names: Iterable[str]) -> Callable[[str], NoReturn]:
    """Make the `__getattr__` of a module that has public names."""

    def refuse(name: str) -> NoReturn:
        raise no_name(owner, name, names)

    return refuse
