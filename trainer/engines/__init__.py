"""Ways to run a training step that is built from tuned kernels: on the GPU from a CUDA graph, or by emulation."""
