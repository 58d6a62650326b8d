"""Scripts that measure what the README claims, and the data that they wrote. Run them from the root of a checkout."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as cli.py does, and says why
