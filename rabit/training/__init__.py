"""What lies between a gradient and an update, for any framework: tasks, their state, the seam for methods."""
