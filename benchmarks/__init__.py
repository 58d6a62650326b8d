"""Scripts that measure what the README claims, and the data that they wrote. Run them from the root of a checkout."""
