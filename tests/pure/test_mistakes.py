"""Mistakes, as tables: what is written, and the class and the text of its error.

Texts are as a traceback ends; `...` in them stands for anything, as in doctest. Each says what was
got, what was expected and what to do.
"""

from __future__ import annotations

import inspect
import math
import operator
import re
import tomllib
from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Any

import networkx as nx
import numpy as np
import pytest

import vertexrt as vrt
from tests.bodies import WithBody, left_over, network_of
from tests.functions import FUNCTIONS
from tests.messages import refused
from tests.package_source import ROOT
from tests.runs import Way
from tests.strategies import CLASSES, WORDS
from vertexrt.config import usable_threads


class F(WithBody):
    """A vertex function whose body does all that its forward() does."""

    def forward(self) -> None:
        self.body(self)

    def done(self, value: Any = 0.0) -> None:
        """Scatter and push something, so that nothing else is missing."""
        self.scatter(c=self.b * 1.0, h=self.b * 1.0)
        self.push("out", value)


# What is written in forward() of `f`.
IN_FORWARD = {
    # scatter
    "f.scatter(c=f.b * 1.0)": "TraceError: [scatter] fields ['c']...",
    "f.scatter(c=f.b * 1.0, x=f.b)": "TraceError: [scatter] ...the declared state ['c', 'h']...",
    "f.scatter(c=f.w @ f.b, h=f.b * 1.0)": "TraceError: [scatter] field 'c' has shape [4]...",
    "f.scatter(c=f.b, h=0.5)": "TraceError: [scatter] field 'h' has shape []...",
    "(f.done(), f.done())": "TraceError: [scatter] called a second time...",
    "f.scatter(c=f.gather_all().c, h=f.b)": "TraceError: [scatter] 'c' is a value per child...",
    # gather
    "f.gather(2)": "TraceError: [gather] slot 2...",
    "f.gather(-1)": "TraceError: [gather] ...F declares slots 0..1...",
    # push
    '(f.done(), f.push("out", f.b))': "TraceError: [push] name 'out' a second time...",
    'f.push("loss", f.b)': "TraceError: [push] the loss has shape [3]...",
    'f.push("each", f.gather_all().h)': "TraceError: [push] 'each' is a value per child...",
    # pull, present
    'f.pull("x", dtype="double")': "TraceError: [pull] dtype 'double' of 'x'...",
    'f.pull("x", dtype="int")': "TraceError: [pull] ...pull_index and edge_index read integers...",
    '(f.pull("x", shape=(2)), f.pull("x", shape=(3)))': "TraceError: [pull] 'x' of shape [3]...",
    '(f.pull("i") * 2.0, vrt.losses.cross_entropy(f.b * 1.0, f.pull("i")))': (
        "TraceError: [pull] 'i' is used as a number and as an index..."
    ),
    'f.present("x")': "TraceError: [present] pull 'x'...",
    "f.present(2)": "TraceError: [present] slot 2...",
    '[f.pull(f"p{k}") for k in range(31)]': "TraceError: [pull] ...at most 30 names...",
    # shapes
    'f.b + f.pull("x", shape=(4))': "TraceError: [add] operands are param float[3], float[4]...",
    'f.w @ f.pull("x", shape=(4))': "TraceError: [matmul] ...a right operand of shape [3]...",
    "f.w @ f.w": "TraceError: [matmul] ...a right operand of shape [3]...",
    "f.b @ f.b": "TraceError: [matmul] ...a parameter of shape [M, N]...",
    'f.b[f.pull("x", dtype="float")]': (
        "TraceError: [index] ...an integer pull, or a number that is..."
    ),
    "f.b[f.b]": "TraceError: [slice] ...of a value of shape...",
    'vrt.argmax(f.pull("x"))': "TraceError: [argmax] ...a vector...",
    'vrt.losses.multi_margin_loss(f.pull("x"), f.pull("i"))': (
        "TraceError: [multi_margin_loss] ...a vector..."
    ),
    'vrt.losses.hinge_loss(f.b, f.pull("x"))': "TraceError: [hinge_loss] shapes [3] and []...",
    'vrt.losses.cross_entropy(f.b, f.pull("i"), 2.0)': (
        "TraceError: [cross_entropy] label_smoothing is 2.0..."
    ),
    'vrt.losses.cross_entropy(f.b, f.pull("i"), weights=[1, 2])': (
        "TraceError: [cross_entropy] weights of shape [2]..."
    ),
    'vrt.embed(f.b, f.pull("i"))': "TraceError: [embed] ...a parameter of shape [N, E]...",
    "vrt.embed(f.w, f.b)": "TraceError: [embed] ...an integer pull as the index...",
    "vrt.losses.cross_entropy(f.b, 1)": (
        "TraceError: [cross_entropy] ...an integer label per vertex..."
    ),
    'vrt.losses.cross_entropy(f.w @ f.gather_all().h, f.pull("i"))': (
        "TraceError: [cross_entropy] ...per..."
    ),
    'vrt.softmax(f.pull("x"))': "TraceError: [softmax] ...a vector...",
    'vrt.sum(f.pull("x"))': "TraceError: [sum] ...a vector...",
    # what a reduction goes over
    "vrt.softmax(f.gather_all().h)": "TraceError: [softmax] a value per child...",
    "vrt.softmax(f.gather_all().h[0])": (
        "TraceError: [softmax] ...write vrt.softmax(x, axis='children')..."
    ),
    "vrt.log_softmax(f.gather_all().h)": "TraceError: [log_softmax] ...axis='children' or axis=...",
    "vrt.logsumexp(f.gather_all().h)": (
        "TraceError: [logsumexp] ...axis='children' or axis='elements'..."
    ),
    'vrt.softmax(f.b, axis="children")': (
        "TraceError: [softmax] axis='children' of a value per vertex..."
    ),
    'vrt.sum(f.b, axis="children")': "TraceError: [sum] ...read the children by gather_all...",
    'vrt.mean(f.b, axis="child")': "TraceError: [mean] ...'children' or 'elements'...",
    "vrt.max(f.gather_all().h, axis=0)": "TraceError: [max] axis=0...",
    'vrt.sum(f.gather_all().h[0], axis="elements")': "TraceError: [sum] ...a vector...",
    # nothing is repeated to fit a target
    'vrt.losses.squared_error(f.b, f.pull("x"))': (
        "TraceError: [squared_error] shapes [3] and []..."
    ),
    'vrt.losses.squared_error(f.pull("x"), f.b)': (
        "TraceError: [squared_error] shapes [] and [3]..."
    ),
    "vrt.split(f.b, 2)": "TraceError: [split] shape [3] in 2 parts...",
    "vrt.concat(f.b, 1.0)": "TraceError: [concat] operands of shapes [[3], []]...",
    "f.b[3]": "TraceError: [slice] element 3 of 3...",
    "f.b[2:1]": "TraceError: [slice] ...at least one element...",
    "f.b[::2]": "TraceError: [slice] ...a step-1 slice...",
    "f.w[4]": "TraceError: [slice] 4 of Parameter('w', (4, 3))...",
    "f.w[::2]": "TraceError: [slice] ...w[a:b], or w[k]...",
    "f.w[2:2]": "TraceError: [slice] ...some of 4 rows...",
    "f.w.reshape(5, 3)": "TraceError: [reshape] ...positive numbers whose product is 12...",
    "f.w.reshape(2, 2, 3) + 1.0": "TraceError: [Parameter] ...write w[k]...",
    "f.w[0] @ f.b": "TraceError: [matmul] ...a parameter of shape [M, N]...",
    "vrt.nn.block_diagonal(f.w, f.b)": "TraceError: [block_diagonal] shapes [4, 3] and [3]...",
    # Python
    "f.done() if f.b * 1.0 else None": "TraceError: [trace] the truth of a traced value...",
    "f.b > 0.0 and f.b < 1.0": "TraceError: [trace] ...multiply by a comparison...",
    "max(f.b[0], f.b[1])": "TraceError: [trace] ...vrt.maximum...",
    "np.tanh(f.b)": "TraceError: [numpy] np.tanh of a traced value...",
    "np.concatenate([f.b, f.b])": "TraceError: [numpy] ...write vrt.concat...",
    "math.exp(f.b[0])": "TraceError: [float] ...vrt.exp for math.exp...",
    "len(f.b)": "TraceError: [len] ...write x.shape[0]...",
    "[x * 2.0 for x in f.b]": "TraceError: [trace] ...vrt.split for parts...",
    "operator.iadd(f.b, 1.0)": "TraceError: [in-place arithmetic] ...write b = self.b + x...",
    "operator.setitem(f.b * 1.0, 0, 1.0)": "TraceError: ...values do not change...",
    "(f.b * 1.0).sum()": "FieldError: [trace] .sum of a traced value...",
    "f.b.mean()": "FieldError: [trace] ...values have a shape and no methods...",
    "round(f.b[0])": "TraceError: [round] ...vrt.floor...",
    'f"{f.b[0]:.2f}"': "TraceError: [format] ...there is no number yet...",
    "f.b @ f.w": "TraceError: [matmul] ...write w.T @ x...",
    "(f.b * 1.0) @ f.w": "TraceError: [matmul] ...write w.T @ x...",
    "vrt.where(f.gather_all().h > 0.0, 1.0, f.w)": "TraceError: [where] ...equal shapes...",
    'f.gather_all().h + f.pull("x", shape=(2))': (
        "TraceError: [add] ...edge float[3], edge float[2]..."
    ),
    'f.done(vrt.softmax(f.gather_all().h, axis="children"))': "TraceError: [push] ...per child...",
    '(f.b * 1.0) ** "3"': "TraceError: [pow] exponent is a str...",
    "f.b + np.ones(3)": "TraceError: [trace] an operand is a ndarray...",
    'f.b + "1"': "TraceError: [trace] an operand is a str...",
    "f.b + vrt.Parameter((3))": "TraceError: [trace] a parameter of shape (3,) has no name...",
    "vrt.random.dropout(f.b, 1.0)": "TraceError: [dropout] p is 1.0...",
    'vrt.random.dropout(f.b, 0.5, per="batch")': "TraceError: [dropout] ...'vertex' or 'graph'...",
    "vrt.random.uniform(-1)": "TraceError: [uniform] shape -1...",
    "vrt.random.normal(3, f.gather_all().h, f.w)": "TraceError: [mul] ...equal shapes...",
    # other libraries, products, and the way that works
    "f.gather(0).x": "FieldError: [gather] field 'x' at...",
    "vrt.tanh(f.gather(0))": "TraceError: [gather] ...write .c after gather()...",
    "sum([f.gather(0)])": "TraceError: [gather] a whole state is used as a value...",
    "vrt.exp(f.w) @ f.b": (
        "TraceError: [matmul] a left operand that is a traced value (Value(exp: float[4,3]))..."
    ),
    "(f.b * 1.0) @ f.b": "TraceError: [matmul] ...vrt.sum(x * y) is the dot...",
    "np.ones((4, 3)) @ f.b": "TraceError: [trace] an operand is a ndarray...",
    "[1.0] @ f.b": "TraceError: [matmul] ...make the matrix a vrt.Parameter...",
    "f.b * np.ones(3)": (
        "TraceError: [trace] ...self.c = vrt.Parameter(shape, lambda shape, random: array, "
        "trainable=False)..."
    ),
    'f.b * float("-inf")': "TraceError: [trace] ...such as -1e30...",
    "(f.b > 0) & (f.b < 1)": "TraceError: [&] ...multiply the masks...",
    "1 if f.b > 0 else 2": "TraceError: [trace] ...multiply by a comparison...",
    "f.b in [f.b * 1.0]": "TraceError: [trace] ...objects are compared by `is`...",
    'f.pull_index("i") == 0.5': "TraceError: [compare] an integer pull and 0.5...",
    "F(F.done).gather(0)": "TraceError: [gather] F.gather in the forward() of another function...",
    "np.sum(f.b)": "TraceError: [numpy] np.sum of a traced value at mistake.py:1...",
    "np.where(f.b > 0, f.b, 0)": "TraceError: [numpy] ...write vrt.where(mask, x, y).",
    "(f.b * 1.0).view(-1)": "FieldError: [trace] ...values are of one vertex and have no batch...",
    "(f.b * 1.0).detach()": "FieldError: [trace] ...write vrt.stop_gradient(x).",
    "f.b[0].item()": "FieldError: [trace] ...self.push(name, x), then net(batch)[name].",
    "f.w.data": "FieldError: [trace] ...write net.parameters[name]...",
    "vrt.sum([f.b, f.b])": "TraceError: [trace] ...join them by vrt.concat(x, y)...",
    "f.b + None": "TraceError: [trace] an operand is a NoneType...",
    "vrt.sum(f.b, axis=-1)": "TraceError: [sum] ...or leave axis out: values...",
    "vrt.sum(f.b[0])": "TraceError: [sum] a number at...",
    "vrt.softmax(f.b[0])": "TraceError: [softmax] a number at...",
    'vrt.losses.cross_entropy(f.pull("y"), f.b)': (
        "TraceError: [cross_entropy] operands are float[]..."
    ),
    "vrt.random.normal(0, 1)": "TraceError: [normal] shape 0 at...",
    '(f.push("loss", f.b[0]), f.push("loss", f.b[1]))': (
        "TraceError: [push] ...add them, and push the sum: only 'loss' is minimised."
    ),
    "(f.w @ f.w) @ f.b": "TraceError: [matmul] ...a vector first: w1 @ (w2 @ x).",
    "vrt.tanh(f.w) @ f.b": "TraceError: [matmul] ...vrt.stack(*(vrt.dot(vrt.tanh(w[k]),...",
    "(f.w * f.w) @ f.b": "TraceError: [matmul] ...compute with its rows, one by one...",
    'f.t3[f.pull("k")] @ f.b': "TraceError: [embed] ...sum((index == k) * (w[k] @ x)...",
    'vrt.embed(f.t3, f.pull("k"))': "TraceError: [embed] ...sum((index == k) *...",
    "f.t3 @ f.b": "TraceError: [matmul] ...write w[k] @ x.",
    "vrt.embed(f.w, 3)": "TraceError: [embed] ...a plain number at...",
    "f.w.T + 1.0": "TraceError: [Parameter] the transpose of Parameter('w', (4, 3)) at...",
    "f.w @ f.w.T": "TraceError: [Parameter] ...w.T @ x alone...",
    "f.b[5]": "TraceError: [slice] element 5 of 3 at...",
    "f.w[0, 1]": "TraceError: [slice] ...write w[k][j] for an element...",
    "len(f.gather_all())": "TraceError: [len] ...counts children...",
}

MISTAKES = {
    # declarations
    "F(lambda f: None).trace()": "TraceError: [scatter] forward() does not scatter...",
    "F(lambda f: f.scatter(c=f.b * 1.0, h=f.b * 1.0)).trace()": (
        "TraceError: [push] forward() pushes nothing..."
    ),
    "F(lambda f: f.gather(0), arity=None).trace()": (
        "TraceError: [gather] ...F declares no slots; declare a larger arity."
    ),
    "F(lambda f: f.done(f.b + left)).trace()": (
        "TraceError: [trace] a value of another vertex function is used here;..."
    ),
    'vrt.VertexFunction(state={"h": 0})': (
        "TraceError: [state] field 'h' has 0 elements; 1 or more;..."
    ),
    'vrt.VertexFunction(state={"h": 2.0})': "TraceError: [state] field 'h' has 2.0 elements;...",
    "vrt.VertexFunction(arity=0, state={})": "TraceError: [arity] arity is 0; 1 to 32,...",
    "vrt.VertexFunction(arity=33, state={})": "TraceError: [arity] arity is 33;...",
    'vrt.VertexFunction(state={"h": 2}, initial={"c": vrt.Parameter((2,))})': (
        "TraceError: [state] initial names field 'c'; fields are ['h'];..."
    ),
    "vrt.Parameter((0, 3))": "TraceError: [Parameter] shape is (0, 3); a tuple of positive...",
    "vrt.VertexFunction(state={}).trace()": "TraceError: [trace] forward() is not written;...",
    "named_twice().parameters()": (
        "TraceError: [parameters] two parameters are called 'w': 'v' got its name before..."
    ),
    "vrt.Parameter((3,)) + 1.0": "TraceError: [trace] an operation of vertexrt runs outside...",
    "F(F.done).gather(0)": "TraceError: [trace] an operation of vertexrt runs outside...",
    'F(F.done).pull("x")': "TraceError: [trace] an operation of vertexrt runs outside...",
    'vrt.compile(NoSuper(), device="reference")': (
        "TraceError: [trace] NoSuper has no arity and no state; a call of super().__init__ in its "
        "__init__;..."
    ),
    "vrt.compile(WithBody)": (
        "UsageError: [compile] the class WithBody; an instance of a subclass of "
        "vrt.VertexFunction or vrt.Model; write vrt.compile(WithBody(...))."
    ),
    "F(F.done, arity=None, initial=INITIAL).trace()": (
        "TraceError: [initial] initial gives ['h'], and forward() gathers no slot; gather(slot), "
        "which reads it where a child is absent; gather_all does not; leave initial out, or gather "
        "slots."
    ),
    "F(F.done, initial=INITIAL).trace()": "TraceError: [initial] ...forward() gathers no slot...",
    'vrt.VertexFunction(state={"h": 2}, initial={"h": vrt.Parameter((3,))})': (
        "TraceError: [state] the initial state of 'h' is Parameter((3,)); a vrt.Parameter of "
        "shape (2,);..."
    ),
    "left_over() + 1.0": "TraceError: [trace] ...outlived its forward()...",
    "vrt.Parameter((3,)) == 1.0": (
        "TraceError: [trace] an operation of vertexrt runs outside of forward()..."
    ),
    "vrt.nn.Linear(3, 0)": (
        "TraceError: [Linear] ...out_features=64); data without a field have 0 labels or words."
    ),
    "vrt.Parameter(3, 4)": "TraceError: [Parameter] ...write vrt.Parameter((3, 4)).",
    "vrt.Parameter(np.ones((3, 4)))": "TraceError: [Parameter] ...net.parameters[name] =...",
    "vrt.Parameter(3, np.ones(3))": (
        "TraceError: [Parameter] ...init=lambda shape, random: array..."
    ),
    "vrt.tanh(np.ones(3))": "TraceError: [trace] ...arrays are NumPy's to compute with...",
    "Takes().trace()": "TraceError: [trace] ...read what a vertex is given by self.pull...",
    "Returns().trace()": "TraceError: [push] ...what forward() returns is not read...",
    # options of networks
    'compiled(policy="fronteir")': (
        "UsageError: [compile] policy is 'fronteir'; one of frontier, depth, agenda, serial; "
        "choose one of these. Nearest: 'frontier'."
    ),
    'compiled(engine="batch")': "UsageError: ...choose one of these. Nearest: 'batched'.",
    'compiled(dtype="float23")': (
        "UsageError: [compile] dtype is 'float23'; one of float32, float64;..."
    ),
    'compiled(dtype="float16")': "UsageError: [compile] dtype is 'float16'; one of float32,...",
    "compiled(dtype=np.int32)": (
        "UsageError: [compile] dtype is 'int32'; one of float32, float64;..."
    ),
    "compiled(dtype=object())": "UsageError: [compile] dtype is '<object...",
    'compiled(reduction="mean")': "UsageError: ...choose one of these. Nearest: 'mean_graphs'...",
    "compiled(policy=None)": "UsageError: [compile] policy is None; one of frontier,...",
    "compiled(threads=0)": "UsageError: [compile] threads is 0; 1 to 1024;...",
    'compiled(device="cpuu")': (
        "DeviceError: [device] device is 'cpuu'; one of auto, cpu, cuda, reference; choose one of "
        "these. Nearest: 'cpu', 'cuda'."
    ),
    # optimizers
    "vrt.ExponentialMovingAverage(net, 1.0)": "UsageError: [ExponentialMovingAverage] decay=...",
    "vrt.ExponentialMovingAverage(net, -0.1)": "UsageError: [ExponentialMovingAverage] decay=...",
    'vrt.ExponentialMovingAverage(net, "x")': "UsageError: [ExponentialMovingAverage] decay=...",
    "vrt.ExponentialMovingAverage(net, None)": "UsageError: [ExponentialMovingAverage] decay=...",
    "vrt.ExponentialMovingAverage(net, math.nan)": (
        "UsageError: [ExponentialMovingAverage] decay=..."
    ),
    "vrt.ExponentialMovingAverage({})": (
        "UsageError: [ExponentialMovingAverage] a dict; a network..."
    ),
    "vrt.SGD(0.1, clip_value=0.0)": "UsageError: [SGD] clip_value=0.0; clip_value > 0, or None...",
    # groups
    "vrt.Adam(groups=3)": "UsageError: [Adam] groups is a int; options by pattern of names...",
    'vrt.Adam(groups={"w": 0.1})': "UsageError: [Adam] groups['w'] is 0.1; options by pattern...",
    'vrt.Adam(groups={"w": {"lrr": 0.1}})': (
        "UsageError: [Adam] an option 'lrr' in groups['w']; one of lr, weight_decay, frozen..."
    ),
    'vrt.Adam(groups={"w": {"lr": -0.1}})': (
        "UsageError: [Adam] groups['w'] has lr=-0.1; lr >= 0..."
    ),
    'vrt.Adam(groups={"w": {"frozen": 1}})': (
        "UsageError: [Adam] groups['w'] has frozen=1; True or False..."
    ),
    'setattr(adam, "groups", {"w": {"lr": -0.1}})': (
        "UsageError: [Adam] groups['w'] has lr=-0.1; lr >= 0..."
    ),
    'vrt.SGD(0.0, groups={"w": {"lr": 0.1}})': "UsageError: ...has a rate beside lr=0.0; lr > 0...",
    'net.step(batch, vrt.SGD(0.1, groups={"ww*": {"lr": 0.1}}))': (
        "UsageError: ...no trained parameter is called 'ww*'; the names are ..."
    ),
    "vrt.Adam().update(net.record(batch).backward())": (
        "UsageError: [Adam.update] a Gradients; the parameters of a network, which "
        "net.step(batch, optimizer)..."
    ),
    # PyTorch's habits: networks, losses, outputs, optimizers, batches, modules
    "net.eval()": (
        "MissingAttributeError: [net] ...write net(batch), in which dropout does not drop."
    ),
    "net.train()": (
        "MissingAttributeError: [net] ...write net.record(batch), in which dropout drops, or "
        "net.step(..."
    ),
    "net.state_dict()": "MissingAttributeError: [net] ...write net.state().",
    "net.load_state_dict({})": "MissingAttributeError: [net] ...write net.load_state(state).",
    'net.to("cuda")': (
        "MissingAttributeError: [net] ...write vrt.compile(function, device=..., dtype=...)."
    ),
    "net.cuda()": (
        "MissingAttributeError: [net] ...write vrt.compile(function, device=..., dtype=...)."
    ),
    "net.fit(batch)": (
        "MissingAttributeError: [net] ...write for batch in loader: loss = net.step(batch, "
        "optimizer)."
    ),
    'net.save("x")': "MissingAttributeError: [net] ...write vrt.save_checkpoint(path, net).",
    "net.parameters()": "UsageError: [parameters] ...an optimizer takes none: vrt.Adam(...",
    "net.weights": "MissingAttributeError: [net] ...one of device, executor, explain...",
    "net.step(batch, vrt.SGD(0.1)).backward()": (
        "MissingAttributeError: [loss] ...it went back and updated; or net.record(..."
    ),
    "net.step(batch, vrt.SGD(0.1)).item()": (
        "MissingAttributeError: [loss] ...write float(loss): it is a number."
    ),
    "net(batch).detach()": "MissingAttributeError: [outputs] ...write outputs['h'], an array...",
    'net(batch)["lost"]': "MissingKeyError: [outputs] no 'lost' among the outputs; out, loss;...",
    "vrt.Adam().step()": "UsageError: [Adam.step] no network; a network, what vrt.compile...",
    "vrt.Adam().zero_grad()": (
        "MissingAttributeError: [optimizer] ...nothing: net.step keeps no gradients..."
    ),
    "vrt.Adam().param_groups": "MissingAttributeError: [optimizer] ...write optimizer.lr = rate...",
    "vrt.Adam(net.parameters)": (
        "UsageError: [Adam] lr is a Parameters; a rate: an optimizer takes no parameters; write "
        "vrt.Adam(lr=1e-3);..."
    ),
    "vrt.SGD(net)": "UsageError: [SGD] lr is a Network; a rate...",
    'vrt.Adam(lr="0.1")': "UsageError: [Adam] lr='0.1'; lr >= 0; set it to a number.",
    "net.step(vrt.Adam(), batch)": (
        "UsageError: [step] GraphBatch(1 graph, 2 vertices, 1 edge; pulls..."
    ),
    "WithBody().step()": (
        "MissingAttributeError: [function] ...write net = vrt.compile(function)..."
    ),
    'batch.to("cuda")': (
        "MissingAttributeError: [graph] ...networks copy batches to their device..."
    ),
    "batch.x": "MissingAttributeError: [graph] ...write graph.pulls['x'].",
    "batch.batch_size": "MissingAttributeError: [graph] ...write graph.num_graphs.",
    "vrt.no_grad": "MissingAttributeError: [vrt] ...write net(batch), which keeps nothing.",
    "vrt.tensor": (
        "MissingAttributeError: [vrt] ...write self.pull(name, shape), or vrt.Parameter(shape)."
    ),
    "vrt.optim": "MissingAttributeError: [vrt] ...write vrt.Adam(lr=1e-3) and the like.",
    "vrt.cross_entropy": "MissingAttributeError: [vrt] ...write vrt.losses.cross_entropy.",
    "vrt.dropout": "MissingAttributeError: [vrt] ...write vrt.random.dropout.",
    "vrt.nn.Module": "MissingAttributeError: [vrt.nn] ...write vrt.VertexFunction, or vrt.Model.",
    "vrt.nn.LSTM": (
        "MissingAttributeError: [vrt.nn] ...write a cell, such as vrt.nn.LSTMCell, along chains."
    ),
    "vrt.losses.mse_loss": "MissingAttributeError: [vrt.losses] ...write vrt.losses.squared_error.",
    "vrt.data.read_json": "MissingAttributeError: [vrt.data] ...Nearest: 'read_jsonl'...",
    # graphs and data
    "vrt.InputGraph.from_edges(4, np.zeros((2, 3), int))": (
        "GraphError: [input graph] ...edge_index.T..."
    ),
    "vrt.InputGraph.from_networkx(nx.Graph())": "GraphError: [from_networkx] a Graph; expected...",
    "vrt.InputGraph.from_networkx([])": "GraphError: [from_networkx] ...takes a list of them...",
    'vrt.data.from_networkx([dag], ["wrod"])': (
        "PullError: [from_networkx] no 'wrod'; the data have word; correct the name or leave it "
        "out. Nearest: 'word'."
    ),
    'vrt.InputGraph.from_networkx(dag, ["wrod"])': (
        "PullError: [from_networkx] ...they have word; correct the name, or leave it out of the "
        "pulls. Nearest: 'word'."
    ),
    'vrt.InputGraph.chain(1, {"w": ["a"]})': (
        "PullError: [input graph] ...vrt.data.from_records does..."
    ),
    'vrt.InputGraph.chain(1, {"w": [True]})': "PullError: [input graph] ...astype(np.int32)...",
    "vrt.InputGraph.from_edges(2, [(0, 1), (1, 0)])": (
        "GraphError: [input graph] ...or unroll it: vrt.data.edges.rounds."
    ),
    'vrt.InputGraph.from_brackets(["(1 a)"])': "DataError: [brackets] ...a tree at a time...",
    'batch.of_type("word")': "GraphError: [graph batch] ...a batch with vertex types...",
    'vrt.save_checkpoint(net, "x")': (
        "UsageError: [save_checkpoint] ...write save_checkpoint(path, net)."
    ),
}

IN_BATCHES = {
    # children
    'tree(of((TREE, PULLS), (WIDE, {"word": [0] * 4, "label": [0] * 4}), (TREE, PULLS)))': (
        "GraphError: [gather] vertex 3 of graph 1 has 3 children; TreeLSTM declares slots 0..1; "
        "binarise the graph, declare arity=3, or read them by gather_all."
    ),
    "star(7, with_a_slot)": (
        "GraphError: [gather] vertex 7 of graph 0 has 7 children; F declares slots 0..0, "
        "which bound the children that gather_all reads too; declare arity=7 and gather the slots "
        "as before, or binarise the graph."
    ),
    "star(40, with_a_slot)": (
        "GraphError: [gather] vertex 40 of graph 0 has 40 children; F declares slots 0..0, "
        "which bound the children that gather_all reads too; binarise the graph."
    ),
    "star(7, lambda f: f.done(vrt.sum(f.gather_all().h)))": (
        "GraphError: [gather] vertex 7 of graph 0 has 7 children; F declares slots 0..0, "
        "though it only reads gather_all; leave arity out."
    ),
    # numbers out of range
    'tree.record(of((TREE, PULLS), (TREE, PULLS | {"label": [0, CLASSES, -1]})))': (
        f"PullError: [pull] 'label' of vertex 1 of graph 1 is {CLASSES}; 0 to {CLASSES - 1}, the "
        "classes, or -1 for none; correct the data or declare more."
    ),
    'tree.record(of((TREE, PULLS), (TREE, PULLS | {"word": [0, -1, WORDS]})))': (
        f"PullError: [pull] 'word' of vertex 2 of graph 1 is {WORDS}; 0 to {WORDS - 1}, the rows "
        "of 'embedding', or -1 for none; correct the data or declare more."
    ),
    # pulls that are missing, or have another shape or dtype
    'tree(of((TREE, {"words": [0] * 3, "label": [0] * 3})))': (
        "PullError: [pull] TreeLSTM pulls 'word', which the batch does not give; it gives label, "
        "words; add the array to the graphs, or compute what does without it, by net(batch, "
        "outputs=[...]). Nearest: 'words'."
    ),
    "tree(of((TREE, {})))": "PullError: ...; it gives nothing; ...",
    'tree(of((TREE, {"word": [0] * 3})))': "PullError: ...pulls 'label'...",
    'tree(of((TREE, PULLS | {"word": np.zeros(3)})))': (
        "PullError: [pull] 'word' is float64 of shape [3]; TreeLSTM reads an integer per vertex: "
        "[3]; pass an integer array with -1 where a vertex has none."
    ),
    'marks(of((TREE, {"mark": np.zeros((3, 3), np.float32), "gain": np.zeros(3)})))': (
        "PullError: [pull] 'mark' is float32 of shape [3, 3]; Marks reads real numbers of shape "
        "[2] per vertex: [3, 2]; convert or reshape the array, or declare pull(name, shape=..., "
        "dtype=...)."
    ),
    'marks(of((TREE, {"mark": vrt.Rows(np.zeros((5, 1)), [0, -1, 1]), "gain": np.zeros(3)})))': (
        "PullError: ...'mark' is float64 of shape..."
    ),
    'marks(of((TREE, {"mark": np.zeros((3, 2)), "gain": np.zeros(3, np.int32)})))': (
        "PullError: ...'gain' is int32 of shape [3]..."
    ),
    'marks(of((TREE, {"mark": np.zeros((3, 2)), "gain": np.zeros((3, 1))})))': (
        "PullError: ...'gain' is float64 of shape [3, 1]..."
    ),
    # what is asked for
    'tree(THREE, outputs=["h"])': "UsageError: [outputs] 'h'; TreeLSTM pushes logits, loss;...",
    "tree(THREE, outputs=())": (
        "UsageError: [call] outputs names no push; TreeLSTM pushes logits, loss; name one, or "
        "leave outputs out for all."
    ),
    "tree.record(THREE, outputs=[])": (
        "UsageError: [record] outputs names no push; TreeLSTM pushes logits, loss; name one, or "
        "leave outputs out for all."
    ),
    'tree(THREE, outputs="logits")': (
        "UsageError: ...expected names of pushes; write outputs=['logits']."
    ),
    "tree(THREE, outputs=7)": (
        "UsageError: [call] outputs is 7; expected names of pushes; pass a list of names."
    ),
    "tree.step(THREE, vrt.SGD(0.1), outputs=7)": (
        "UsageError: [step] outputs is 7; expected names of pushes; pass a list of names."
    ),
    'tree(THREE, outputs=[["logits"]])': (
        "UsageError: [call] outputs is [['logits']]; expected names of pushes; pass a list of..."
    ),
    "tree(THREE, outputs=[None])": (
        "UsageError: [call] outputs is [None]; expected names of pushes; pass a list of names."
    ),
    'vrt.compile(F(F.done), device="reference").step(THREE, vrt.SGD(0.1))': (
        "UsageError: [step] F pushes out; a push named 'loss';..."
    ),
    "tree.step(THREE, vrt.Adam)": (
        "UsageError: [step] the class Adam; expected an optimizer; pass an optimizer such as "
        "vrt.Adam(lr=..."
    ),
    "tree.step(THREE, None)": (
        "UsageError: [step] None; expected an optimizer; pass an optimizer such as vrt.Adam(..."
    ),
    'tree(vrt.data.from_records([{"chain": 1}]))': (
        "UsageError: ...is a Examples; expected a GraphBatch; pass its attribute `batch`."
    ),
    # the way back
    "[run.backward() for run in [tree.record(THREE)] * 2]": (
        "UsageError: [backward] a record that was gone back through; one, once; call "
        "net.record(batch) again."
    ),
    'tree.record(THREE).backward({"logits": np.ones((3, 1))})': (
        "PullError: [backward] the gradient of 'logits' has shape [3, 1]; real numbers of..."
    ),
    'tree.record(THREE, outputs=["logits"]).backward({"loss": np.ones(3)})': (
        "UsageError: ...the record was asked for ['logits']..."
    ),
    'tree.record(THREE).backward({"losss": np.ones(3)})': (
        "UsageError: ...ask for one of these. Nearest: 'loss', 'logits'."
    ),
    "tree.record(THREE).backward([np.zeros(3)])": "UsageError: [backward] a list; expect...",
    'tree.record(THREE).backward({"loss": np.array(["1.0"] * 3)})': (
        "PullError: [backward] the gradient of 'loss' has dtype <U3; real numbers of shape [3]..."
    ),
    'tree.record(THREE).backward({"loss": np.zeros(3, complex)})': (
        "PullError: [backward] the gradient of 'loss' has dtype complex128; real numbers of shape "
        "[3]..."
    ),
    'tree.record(THREE).backward({"loss": [[1.0], [1.0, 2.0], []]})': (
        "PullError: [backward] the gradient of 'loss' is rows of unequal length; real numbers of "
        "shape [3]..."
    ),
    'tree.record(THREE).backward({"loss": np.array([None] * 3)})': (
        "PullError: [backward] the gradient of 'loss' has dtype object; real numbers of shape "
        "[3]..."
    ),
    'tree.record(THREE).backward({"loss": np.ma.masked_all(3)})': (
        "PullError: [backward] the gradient of 'loss' is a masked array, whose mask would be "
        "lost; real numbers of shape [3]..."
    ),
    "tree.parameters.update([np.zeros(3)])": (
        "CheckpointError: [parameters] a list; expected arrays by name; pass a dict."
    ),
    'tree.parameters.update(changed(tree, "<U3"))': (
        "CheckpointError: [parameters] 'v' has dtype <U3; real numbers..."
    ),
    'tree.parameters.update(changed(tree, "complex128"))': (
        "CheckpointError: [parameters] 'v' has dtype complex128; real numbers..."
    ),
    'tree.parameters.update(changed(tree, "object"))': (
        "CheckpointError: [parameters] 'v' has dtype object; real numbers..."
    ),
    'tree.parameters.update(changed(tree, "bool"))': (
        "CheckpointError: [parameters] 'v' has dtype bool; real numbers..."
    ),
    'tree.parameters.update(changed(tree, "M8[s]"))': (
        "CheckpointError: [parameters] 'v' has dtype datetime64[s]; real numbers..."
    ),
}

# What is handed to a network in place of a batch.
for _where, _call in {
    "step": "tree.step({}, vrt.SGD(0.1))",
    "call": "tree({})",
    "record": "tree.record({})",
    "plan": "tree.plan({})",
    "explain_batch": "tree.explain_batch({})",
    "warm": "tree.warm({})",
}.items():
    for _given, _name in {"[GRAPH]": "list", "GRAPH": "InputGraph", "None": "NoneType"}.items():
        IN_BATCHES[_call.format(_given)] = (
            f"UsageError: [{_where}] the batch is a {_name}; expected a GraphBatch; "
            "build a GraphBatch: vrt.GraphBatch.from_graphs([...])."
        )


# What the rows name.


class NoSuper(vrt.VertexFunction):
    def __init__(self) -> None:
        self.w = vrt.Parameter((2, 2))


class Takes(vrt.VertexFunction):
    def __init__(self) -> None:
        super().__init__(state={})

    def forward(self, x: Any) -> None:  # type: ignore[override]
        self.push("x", x)


class Returns(Takes):
    def forward(self) -> Any:  # type: ignore[override]
        return self.pull("x")


def of(*graphs: tuple[list[list[int]], dict[str, Any]]) -> vrt.GraphBatch:
    """Build a batch of child lists and pulls."""
    made = [vrt.InputGraph.from_children(lists, pulls) for lists, pulls in graphs]
    return vrt.GraphBatch.from_graphs(made)


def with_a_slot(f: Any) -> None:
    f.done(vrt.sum(f.gather_all().h) + f.gather(0).h)


def star(children: int, body: Callable[[Any], None]) -> object:
    """Evaluate one vertex over so many leaves, of a function that declares one slot."""
    lists = [*([[]] * children), list(range(children))]
    return vrt.compile(F(body, arity=1), device="reference")(of((lists, {})))


@cache
def compiled(name: str = "tree-lstm", **options: Any) -> vrt.Network:
    return vrt.compile(FUNCTIONS[name][0](), **{"device": "reference", **options})


def changed(net: vrt.Network, dtype: str) -> dict[str, Any]:
    """Return other values of all parameters, those of `v` as another dtype."""
    values = net.parameters.items()
    return {name: a.astype(dtype) if name == "v" else a + 1.0 for name, a in values}


def named_twice() -> F:
    first, second = F(F.done), F(F.done)
    assert set(first.parameters()) == {"w", "b", "t3"}
    second.v = first.w  # type: ignore[attr-defined]
    return second


TREE: list[list[int]] = [[], [], [0, 1]]
WIDE = [[], [], [0, 1], [2, 0, 1]]
PULLS: dict[str, Any] = {"word": [0] * 3, "label": [0] * 3}
INITIAL = {"h": vrt.Parameter(3)}
GRAPH = vrt.InputGraph.from_children(TREE, PULLS)
THREE = vrt.GraphBatch.from_graphs([GRAPH])


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """Name what the rows compute with."""
    batch, dag = of(([[], [0]], {})), nx.DiGraph()
    dag.add_node(0, word=1)
    modules = {"math": math, "operator": operator}
    here = {"net": network_of(), "batch": batch, "adam": vrt.Adam(), "left": left_over()}
    return globals() | modules | here | {"marks": compiled("marks"), "dag": dag}


@pytest.mark.parametrize("code", IN_FORWARD)
def test_mistakes_in_forward(code: str, names: dict[str, Any]) -> None:
    def body(f: F) -> None:
        eval(compile(code, "mistake.py", "eval"), {**names, "f": f})

    error = refused(F(body).trace, IN_FORWARD[code])
    assert re.search(r"at \w+\.py:\d+: ", str(error))


@pytest.mark.parametrize("code", MISTAKES)
def test_mistakes_say_what_to_write(code: str, names: dict[str, Any]) -> None:
    refused(lambda: eval(code, names), MISTAKES[code])
    assert names["adam"].groups == {}, "an option was refused and set"


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("code", IN_BATCHES)
def test_mistakes_in_batches(code: str, threads: int, names: dict[str, Any]) -> None:
    """The vertex and its graph are the user's, however the batch is shared out."""
    tree = compiled(threads=threads)
    before = dict(tree.parameters)
    error = refused(lambda: eval(code, {**names, "tree": tree}), IN_BATCHES[code])
    assert error.__context__ is None, "the traceback has the same error twice"
    for name, value in tree.parameters.items():
        np.testing.assert_array_equal(value, before[name])


def test_a_shape_error_shows_the_users_line() -> None:
    def body(f: F) -> None:
        f.done(f.w @ f.b + f.b)  # the mistake

    line = inspect.getsourcelines(body)[1] + 1
    refused(
        F(body).trace,
        "TraceError: [add] operands are float[4], param float[3], at "
        f"test_mistakes.py:{line}: f.done(f.w @ f.b + f.b)  # the mistake; "
        "equal shapes, or a scalar with any shape; change that line.",
    )


TEXTS = tomllib.loads((ROOT / "vertexrt" / "instead.toml").read_text(encoding="utf-8"))


def test_names_to_write_are_there() -> None:
    for texts in TEXTS.values():
        for name in re.findall(r"\bvrt\.([\w.]*\w)", " ".join(texts.values())):
            attrgetter(name)(vrt)


# What is no mistake.


def test_empty_slots_beyond_the_arity_do_no_harm() -> None:
    found = compiled()(of(([[], [], [0, 1, -1, -1]], PULLS)))
    np.testing.assert_array_equal(found["loss"], compiled()(THREE)["loss"])


def test_gradients_of_any_layout_are_the_same() -> None:
    plain = np.random.default_rng(0).standard_normal((3, 3)).astype(np.float32)
    layouts = [plain, plain.astype(">f4"), plain.astype(np.float64), plain.tolist()]
    layouts += [np.asfortranarray(plain), np.repeat(plain, 2, 1)[:, ::2], plain[::-1].copy()[::-1]]
    runs = [compiled().record(THREE, outputs=["logits"]) for _ in layouts]
    pairs = zip(runs, layouts, strict=True)
    first, *others = [run.backward({"logits": given}).parameters for run, given in pairs]
    for found in others:
        for name, value in found.items():
            np.testing.assert_array_equal(value, first[name])


# A loss that is not finite.


@pytest.mark.filterwarnings("ignore:(invalid|divide)")
@pytest.mark.parametrize("threads", [1, 2])
def test_the_first_value_that_is_not_finite_is_named(threads: int) -> None:
    def body(f: F) -> None:
        x = f.pull("x", shape=3)
        f.scatter(c=x, h=x)
        f.push("loss", vrt.sum(vrt.sum(vrt.log(f.gather_all().h + x))))

    net = vrt.compile(F(body, arity=1), device="reference", threads=threads)
    x = np.ones((4, 3))
    x[2, 1] = -3.0
    graphs = [vrt.InputGraph.chain(4, {"x": np.ones((4, 3))}), vrt.InputGraph.chain(4, {"x": x})]
    refused(
        lambda: net.step(vrt.GraphBatch.from_graphs(graphs), vrt.SGD(0.1)),
        "NumericError: [loss] the loss is nan: the first value that is not finite is made by log "
        "of vertex 2 of graph 1, at test_mistakes.py:...a finite loss; no parameter was changed; "
        "lower the learning rate, clip the gradient norm, or guard that expression.",
    )
    assert np.isfinite(net.step(vrt.GraphBatch.from_graphs(graphs[:1]), vrt.SGD(0.1)))


def test_a_parameter_that_is_not_finite_is_named() -> None:
    net = Way().compile(FUNCTIONS["tree-lstm"][0]())
    net.executor.model.store.value("v")[1, 2] = np.nan
    refused(
        lambda: net.step(THREE, vrt.SGD(0.1)),
        "NumericError: ...parameter 'v' is not finite at [1, 2]; finite parameters;...",
    )


class Apart(WithBody):
    """Reads `read` for a push that is no loss, and `lost` nowhere."""

    def __init__(self) -> None:
        super().__init__(lambda f: f.push("other", f.w @ f.b + f.read))
        self.read, self.lost = vrt.Parameter(4), vrt.Parameter(4)


def test_parameters_that_are_not_trained_are_warned_of_once(names: dict[str, Any]) -> None:
    with pytest.warns(UserWarning, match=r"^\[compile\] nothing reads lost, t3;") as found:
        net = vrt.compile(Apart(), device="reference")
    with pytest.warns(UserWarning, match=r"^\[step\] 'loss' does not depend on read, w;") as later:
        net.step(names["batch"], vrt.SGD(0.1))
    net.step(names["batch"], vrt.SGD(0.1), outputs=["other"])
    assert [each.filename for each in (*found, *later)] == [__file__] * 2


# What is printed, in one line.

SHOWN = {
    "net": (
        "Network(WithBody on reference, engine='auto', threads={threads}, float32, 33 parameters, "
        "pushes out, loss)"
    ),
    "net.parameters": "Parameters(w: [4, 3], b: [3], t3: [2, 3, 3]; float32)",
    "WithBody()": "WithBody(arity=2, state={'c': 3, 'h': 3}, 33 parameters)",
    "NoSuper()": "NoSuper(without super().__init__())",
    "vrt.Parameter((4, 3))": "Parameter((4, 3))",
    "vrt.Parameter(5)": "Parameter((5,))",
    "vrt.Parameter(np.int64(5))": "Parameter((5,))",
    "vrt.Parameter((np.int32(2), 3))": "Parameter((2, 3))",
    "vrt.SGD(0.1, 0.9)": (
        "SGD(lr=0.1, momentum=0.9, weight_decay=0.0, clip_norm=None; 0 steps done)"
    ),
    "net.record(batch).backward()": (
        "Gradients(parameters: w [4, 3], b [3], t3 [2, 3, 3]; pulled: none)"
    ),
    "net(batch)": "Outputs(out [2, 3], loss [2])",
    "in_forward(lambda f: f.b > 0)": "Value(greater: float[3])",
    "in_forward(lambda f: f.gather(0))": "State(c: float[3], h: float[3])",
    "in_forward(lambda f: f.w)": "Parameter('w', (4, 3))",
    "in_forward(lambda f: hasattr(f.gather(0), 'h'))": "True",
    "in_forward(lambda f: hasattr(f.gather(0), 'x'))": "False",
}


def in_forward(call: Callable[[Any], object]) -> Any:
    """Return what prints as the value of a call in a forward() does there."""
    kept: list[str] = []
    WithBody(lambda f: kept.append(repr(call(f)))).trace()
    return type("Shown", (), {"__repr__": lambda self: kept[0]})()


@pytest.mark.parametrize("code", SHOWN)
def test_what_is_printed_is_one_line(code: str, names: dict[str, Any]) -> None:
    assert repr(eval(code, names)) == SHOWN[code].replace("{threads}", str(usable_threads()))
