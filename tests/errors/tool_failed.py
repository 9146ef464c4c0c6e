"""A tool that exits with an error."""

from babytriton.runtime import cuda


def run():
    cuda._run(["sh", "-c", "echo no such architecture; exit 1"])
