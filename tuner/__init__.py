"""The engine: searches, compiles, verifies, measures and stores. It knows no kernel by name."""
