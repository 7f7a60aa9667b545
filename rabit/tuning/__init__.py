"""The autotuner, and the model of a training step."""
