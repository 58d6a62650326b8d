"""The application: MNIST, the multilayer perceptron on tuned kernels, the PyTorch contenders and the race."""
