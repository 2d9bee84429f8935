"""PyTorch computes in float32 where it is compared with ours, which does."""

import torch


def only_float32(device: str) -> None:
    """Leave TF32 off; a CPU has none.

    Not on a CPU: whoever imports `torch.testing._internal` in the process forbids these settings.
    """
    if device != "cpu":
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
