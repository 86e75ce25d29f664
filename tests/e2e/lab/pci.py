"""A PCI bus as sysfs shows it, with arbitrary devices."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

NVIDIA = 0x10DE


@dataclass(frozen=True, slots=True)
class Device:
    """A PCI function.

    Attributes:
        device_class: class, subclass and programming interface (0x030200: 3D controller).
        driver: the kernel driver bound to it; empty for none.
        vpd: its vital product data; empty for none.
    """

    address: str
    device: int
    vendor: int = NVIDIA
    device_class: int = 0x030000
    subsystem: tuple[int, int] = (NVIDIA, 0x0001)
    revision: int = 0xA1
    driver: str = ""
    vpd: bytes = field(default=b"", repr=False)

    @property
    def modalias(self) -> str:
        """The modalias in the kernel's form."""
        vendor, device = self.subsystem
        base, sub, interface = self.device_class.to_bytes(3, "big")
        identity = f"v{self.vendor:08X}d{self.device:08X}sv{vendor:08X}sd{device:08X}"
        return f"pci:{identity}bc{base:02X}sc{sub:02X}i{interface:02X}"

    @property
    def config(self) -> bytes:
        """The configuration space: header type 0, all unspecified bytes zero."""
        space = bytearray(256)
        struct.pack_into("<HH", space, 0x00, self.vendor, self.device)
        space[0x08] = self.revision
        space[0x09:0x0C] = self.device_class.to_bytes(3, "little")
        struct.pack_into("<HH", space, 0x2C, *self.subsystem)
        return bytes(space)

    def attributes(self) -> dict[str, str]:
        """Return the text files that sysfs has for the device."""
        vendor, device = self.subsystem
        return {
            "vendor": f"0x{self.vendor:04x}",
            "device": f"0x{self.device:04x}",
            "class": f"0x{self.device_class:06x}",
            "subsystem_vendor": f"0x{vendor:04x}",
            "subsystem_device": f"0x{device:04x}",
            "revision": f"0x{self.revision:02x}",
            "modalias": self.modalias,
            "irq": "0",
            "enable": "0",
            "numa_node": "-1",
            "boot_vga": "0",
            "resource": "\n".join(["0x0000000000000000 0x0000000000000000 0x0000000000000000"] * 13),
        }


HOST_BRIDGE = Device("0000:00:00.0", 0x29C0, vendor=0x8086, device_class=0x060000, subsystem=(0x8086, 0))
GTX_1080 = Device("0000:01:00.0", 0x1B80, subsystem=(0x1043, 0x8592))
T4 = Device("0000:01:00.0", 0x1EB8, device_class=0x030200, subsystem=(NVIDIA, 0x12A2))
A100 = Device("0000:17:00.0", 0x20B2, device_class=0x030200, subsystem=(NVIDIA, 0x1463))
A100_NVSWITCH = Device("0000:0b:00.0", 0x1AF1, device_class=0x068000, subsystem=(NVIDIA, 0x0001))
H100 = Device("0000:17:00.0", 0x2330, device_class=0x030200, subsystem=(NVIDIA, 0x16C1))
NVSWITCH = Device("0000:0b:00.0", 0x22A3, device_class=0x068000, subsystem=(NVIDIA, 0x0001))
H200 = Device("0000:17:00.0", 0x2335, device_class=0x030200, subsystem=(NVIDIA, 0x18BE))
B200 = Device("0000:17:00.0", 0x2901, device_class=0x030200, subsystem=(NVIDIA, 0x1999))
RTX_PRO_6000 = Device("0000:01:00.0", 0x2BB1, subsystem=(NVIDIA, 0x204B))
GB200 = Device("0009:01:00.0", 0x2941, device_class=0x030200, subsystem=(NVIDIA, 0x2046))
RADEON = Device("0000:03:00.0", 0x73BF, vendor=0x1002, subsystem=(0x1002, 0x0E3A))


def write_bus(bus: Path, devices: Iterable[Device]) -> Path:
    """Make ``bus`` a folder like /sys/bus/pci that holds ``devices`` and no others."""
    for name in ("devices", "drivers", "slots"):
        (bus / name).mkdir(parents=True, exist_ok=True)
    for device in devices:
        folder = bus / "devices" / device.address
        folder.mkdir()
        (folder / "config").write_bytes(device.config)
        for name, text in device.attributes().items():
            (folder / name).write_text(f"{text}\n")
        if device.vpd:
            (folder / "vpd").write_bytes(device.vpd)
        if device.driver:
            driver = bus / "drivers" / device.driver
            driver.mkdir(exist_ok=True)
            (folder / "driver").symlink_to(f"../../drivers/{device.driver}")
            (driver / device.address).symlink_to(f"../../devices/{device.address}")
    return bus
