"""`mnist-tune selftest`: does the tuner survive, and tell from each other, all that goes wrong with kernels?"""

from tuner.selftest.run import run_selftest

__all__ = ["run_selftest"]
