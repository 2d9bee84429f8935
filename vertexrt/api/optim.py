"""The optimizers of `vrt`: a class for each row of `ir/updates.py`.

Sparse parameters (embedding tables) are updated lazily: only rows that have a gradient in this step
move. The state of the others rests and weight decay does not reach them, while bias corrections
count every step. So a table differs from the same parameter declared dense, except under rules
without averages (Adagrad, SGD without momentum), both without weight decay, where the two agree.

Type checkers read `optim.pyi` in place of this file.
"""

from vertexrt.api.optimizer_class import class_of
from vertexrt.ir.updates import OPTIMIZERS as ROWS

OPTIMIZERS = {row.title: class_of(row, __name__) for row in ROWS}
globals().update(OPTIMIZERS)
