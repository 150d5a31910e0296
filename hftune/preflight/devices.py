"""Known accelerators: their memory, and what their data sheets promise."""

from __future__ import annotations

from dataclasses import dataclass

GIB = 2**30


@dataclass(frozen=True)
class Device:
    """One accelerator, or the processor.

    Args:
        name: As `--gpus` takes it.
        memory: Bytes that a process can have, the driver's own taken off.
        tflops: Dense multiplications and additions a second in bf16 (fp16 where there is no bf16), in 10^12, of which
            `mfu` in the logs is a share; None: not known.
        bf16: Whether it computes in bf16.
        major: Of its compute capability, which decides what attention it runs; 0 for a processor.
    """

    name: str
    memory: float
    tflops: float | None = None
    bf16: bool = True
    major: int = 8

    @property
    def on_cpu(self) -> bool:
        """Whether it is a processor."""
        return self.name == "CPU"


def _device(name: str, mib: int, tflops: float, major: int) -> Device:
    # bf16 came with Ampere (8).
    return Device(name, mib * 2**20, tflops, major >= 8, major)


# Memory as nvidia-smi or rocm-smi name it; speeds from the makers' data sheets, without sparsity.
DEVICES: dict[str, Device] = {
    device.name: device
    for device in (
        _device("B200", 183359, 2250, 10),
        _device("H200", 143771, 989, 9),
        _device("H100", 81559, 989, 9),
        _device("A100-80", 81920, 312, 8),
        _device("A100-40", 40960, 312, 8),
        _device("MI300X", 196592, 1307, 9),
        _device("L40S", 46068, 362, 8),
        _device("4090", 24564, 165, 8),
        _device("3090", 24576, 71, 8),
        _device("A10", 23028, 125, 8),
        _device("T4", 15360, 65, 7),
        _device("V100-32", 32768, 125, 7),
        _device("V100-16", 16384, 125, 7),
    )
}


def known_gpu() -> Device:
    """This process's GPU as in `DEVICES`, by name and size; without speeds where it is not known."""
    import torch

    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    # Names such as `NVIDIA A100-SXM4-80GB` or `Tesla T4`; sizes tell the kinds of A100 and V100 apart.
    words = properties.name.upper().replace("-", " ").split()
    named = [device for key, device in DEVICES.items() if key.split("-")[0] in words]
    unknown = Device(properties.name, properties.total_memory, major=properties.major)
    return min(named, key=lambda device: abs(device.memory - properties.total_memory), default=unknown)
