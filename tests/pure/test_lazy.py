"""What calls give back that a device may still compute: it is waited for once, when it is read."""

import copy
import math
import pickle
import weakref

import numpy as np
import pytest

from vertexrt.engine.lazy import Loss, Outputs
from vertexrt.errors import DeviceError, UsageError


def test_outputs_are_waited_for_once_and_are_read_only() -> None:
    waits: list[int] = []

    def wait() -> dict[str, np.ndarray]:
        waits.append(1)
        return {"h": np.ones((2, 3))}

    outputs = Outputs(None, wait)
    assert repr(outputs) == "Outputs(not waited for)"
    assert outputs["h"].shape == (2, 3)
    assert ([*outputs], len(outputs)) == (["h"], 1)
    assert repr(outputs) == "Outputs(h [2, 3])"
    assert len(waits) == 1
    with pytest.raises(TypeError, match="item assignment"):
        outputs["h"] = 0  # type: ignore[index]
    assert type(copy.deepcopy(outputs)) is type(pickle.loads(pickle.dumps(outputs))) is dict


def test_an_error_of_outputs_comes_at_every_reading() -> None:
    def wait() -> dict[str, np.ndarray]:
        raise DeviceError("it gave up")

    outputs = Outputs(None, wait)
    outputs.settle()
    for _ in range(2):
        with pytest.raises(DeviceError, match="it gave up"):
            outputs["h"]
    assert repr(outputs) == "Outputs(failed)"


def test_a_loss_is_a_number_that_waits_once() -> None:
    waits: list[int] = []

    def wait() -> float:
        waits.append(1)
        return 0.75

    loss = Loss(None, wait=wait)
    assert not waits
    assert f"{loss} {loss:.1f} {loss!r}" == "0.75 0.8 0.75"
    assert 0.5 < loss <= loss == 0.75 != 1
    assert (loss + loss, 1 + loss, loss - 1, 1 - loss) == (1.5, 1.75, -0.25, 0.25)
    assert (2 * loss, loss / 3, 3 / loss, -loss, abs(loss)) == (1.5, 0.25, 4.0, -0.75, 0.75)
    assert (loss**2, loss // 0.5, loss % 0.5, round(loss, 1), int(loss)) == (
        0.5625,
        1,
        0.25,
        0.8,
        0,
    )
    assert loss
    assert not Loss(0.0)
    assert sum([loss, loss]) == pytest.approx(Loss(1.5))
    assert math.isfinite(loss)
    assert np.array([loss, loss]).dtype == np.mean([loss, 1.0]).dtype == np.float64
    assert {loss: 1}[copy.copy(loss)] == 1
    assert type(pickle.loads(pickle.dumps(loss))) is float
    assert len(waits) == 1


def test_a_loss_that_was_read_holds_nothing() -> None:
    class Device:
        def wait(self) -> float:
            return 1.0

    device = Device()
    loss, alive = Loss(None, wait=device.wait), weakref.ref(device)
    del device
    assert float(loss) == 1.0
    assert alive() is None


def test_outputs_are_no_array() -> None:
    """NumPy made one of the names, which were all that some tests compared."""
    with pytest.raises(UsageError, match=r"\[outputs\] h, loss as one array; one of them; name it"):
        np.asarray(Outputs({"h": np.zeros(2), "loss": np.zeros(2)}))
