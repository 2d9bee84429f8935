"""Options as users give them, right and wrong: mypy refuses an ignore that is idle."""

import vertexrt as vrt

optimizer = vrt.Adam(1e-3, betas=(0.9, 0.99), clip_norm=None)
rate: float = optimizer.lr
base: vrt.Optimizer = optimizer
vrt.Adam(beta=0.9)  # type: ignore[call-arg]
vrt.SGD()  # type: ignore[call-arg]
vrt.SGD("0.1")  # type: ignore[arg-type]
vrt.Lion(betas=0.9)  # type: ignore[arg-type]
vrt.Adamm()  # type: ignore[attr-defined]
