"""Run generated CUDA on the CPU, and compile it with the real toolchain where there is one."""

from .emulator import (
    ORDERS,
    EmulatorError,
    Kernel,
    Order,
    available_gpu,
    compile_kernels,
    install,
    launches,
    missing,
    run,
    thread_order,
)

__all__ = [
    "ORDERS",
    "EmulatorError",
    "Kernel",
    "Order",
    "available_gpu",
    "compile_kernels",
    "install",
    "launches",
    "missing",
    "run",
    "thread_order",
]
