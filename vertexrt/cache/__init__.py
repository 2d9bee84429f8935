"""What is kept on disk between processes: compiled kernels and the choices that were timed."""
