"""Python syntax and call arguments -> the Relax program of one specialization."""
