"""The points at which a gradient is checked: targets, sizes of open dimensions, values of inputs."""
