"""Cases that crash, hang and fail, for the test of `outcomes`."""

import os
import signal
import time

from tests.attacks.outcomes import FAILED, Cases


def make() -> Cases:
    """Return what runs a case: number 3 ends the process, 5 hangs, 7 fails."""

    def case(number: int) -> tuple[str, str]:
        if number == 3:
            os.kill(os.getpid(), signal.SIGSEGV)
        if number == 5:
            time.sleep(600)
        return "numbers", f"{FAILED}: seven" if number == 7 else "fine"

    return case
