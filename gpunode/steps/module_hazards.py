"""What on the node keeps NVIDIA's modules out, lets nouveau in, or keeps users off the GPU, at the next boot or now."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpunode.command import command
from gpunode.facts.kernels import modprobe_directives, modules_loaded_by_name
from gpunode.facts.model import Facts, Unknown, known
from gpunode.facts.patterns import Pattern
from gpunode.facts.probes import BOOT_LOADER, DRIVER_PARAMETERS, KERNEL_ARGUMENTS
from gpunode.packages import system

BLACKLIST: Final = "/etc/modprobe.d/gpunode-nouveau.conf"
# nova_core and nova_drm bind GSP GPUs from Linux 6.18 on; a blacklist line for an absent module does nothing.
RIVALS: Final = frozenset({"nouveau", "nova_core", "nova_drm"})
_DRIVER: Final = frozenset({"nvidia", "nvidia_drm", "nvidia_modeset", "nvidia_uvm"})
_DOES_NOTHING: Final = frozenset({"true", "false", ":"})
# Kernel parameters that keep modules out: kernel-parameters.txt (module_blacklist) and modprobe.d(5).
_KEEPS_OUT: Final = ("modprobe.blacklist=", "module_blacklist=")
_DISPLAY: Final = "makes nouveau drive the display when it is loaded"
_GRUB_LINE: Final = Pattern(r"\s*(?:export\s+)?GRUB_CMDLINE_LINUX\w*=(.*)")
_DEVICE_FILES: Final = "/dev/nvidia*"
_MODE: Final = "NVreg_DeviceFileMode="
_GROUP: Final = "NVreg_DeviceFileGID="
_IN_USE: Final = Pattern(r"(?m)^DeviceFile(?P<what>Mode|GID): (?P<value>\d+)$")


def hazards(facts: Facts) -> tuple[str, ...]:
    """Return a note for every line by which modules or device files will not be as the driver needs them."""
    said = (*_by_name(facts), *_directives(facts), *_kernel_arguments(facts))
    closed = () if any(_DEVICE_FILES in note for note in said) else tuple(_closed_devices(facts))
    return (*said, *closed, *_old_initramfs(facts))


def _by_name(facts: Facts) -> Iterator[str]:
    for one in modules_loaded_by_name(facts):
        if one.words[0] in RIVALS:
            yield f"{one.file}:{one.line} loads {one.words[0]} by name, despite any blacklist: remove it"


def _directives(facts: Facts) -> Iterator[str]:
    group = _device_group(facts)
    for one in modprobe_directives(facts):
        if one.file != BLACKLIST and (effect := _effect(one.words, group)):
            yield f"{one.file}:{one.line} {effect}: remove it"


def _device_group(facts: Facts) -> int:
    """Return the group that any option gives the device files, 0 for root's: modprobe joins options of all files."""
    options = [
        word for one in modprobe_directives(facts) if one.words[:2] == ("options", "nvidia") for word in one.words
    ]
    arguments = known(facts.file(KERNEL_ARGUMENTS), None)
    words = _text(arguments.content).split() if arguments else []
    options += [word.removeprefix("nvidia.") for word in words if word.startswith("nvidia.")]
    return _value(options, _GROUP) or 0


def _effect(words: tuple[str, ...], group: int) -> str:
    """Return what a directive of modprobe does against the NVIDIA driver; empty where it does nothing.

    Args:
        words: of the directive.
        group: that the device files get.
    """
    match words:
        case ("blacklist", module) if module in _DRIVER:
            return f"keeps {module} from being loaded for its GPU"
        case ("install", module, program, *_) if module in _DRIVER and program.rpartition("/")[2] in _DOES_NOTHING:
            return f"makes modprobe run {program} instead of loading {module}"
        case ("alias", module, "off") if module in _DRIVER:
            return f"disables {module}"
        case ("softdep", module, *others) if rivals := sorted(RIVALS.intersection(others)):
            return f"loads {', '.join(rivals)} along with {module}"
        case ("options", "nouveau", *options) if any(o.startswith("modeset=") and o != "modeset=0" for o in options):
            return _DISPLAY
        case ("options", "nvidia", *options) if (mode := _value(options, _MODE)) is not None:
            return _closed(mode, group)
        case _:
            return ""


def _kernel_arguments(facts: Facts) -> Iterator[str]:
    """Yield a note for every kernel argument of the next boot, or of this one where the boot loader has it no more."""
    said = set()
    group = _device_group(facts)
    state = known(facts.file(BOOT_LOADER), None)
    for number, line in enumerate(_text(state.content).split("\n") if state else (), 1):
        if match := _GRUB_LINE.match(line):
            for word in match[1].replace('"', " ").replace("'", " ").split():
                if effect := _argument_effect(word, group):
                    said.add(word)
                    yield f"{BOOT_LOADER}:{number} has {word}, which {effect}: remove it, then run update-grub"
    remedy = "remove it from the boot loader's configuration"
    if state:
        remedy = f"{BOOT_LOADER} does not have it, so look in /etc/default/grub.d, run update-grub, and reboot"
    state = known(facts.file(KERNEL_ARGUMENTS), None)
    for word in dict.fromkeys(_text(state.content).split() if state else ()):
        if word not in said and (effect := _argument_effect(word, group)):
            yield f"{KERNEL_ARGUMENTS}: the kernel was started with {word}, which {effect}: {remedy}"


def _argument_effect(word: str, group: int) -> str:
    name, _, value = word.partition("=")
    if name == "nouveau.modeset" and value != "0":
        return _DISPLAY
    if word.startswith(_KEEPS_OUT):
        modules = sorted(_DRIVER.intersection(value.replace("-", "_").split(",")))
        return f"keeps {', '.join(modules)} from being loaded" if modules else ""
    if word.startswith(f"nvidia.{_MODE}") and (mode := _number(value)) is not None:
        return _closed(mode, group)
    return ""


def _closed_devices(facts: Facts) -> Iterator[str]:
    """Yield a note where the loaded driver gives its device files a mode that only root can use, whoever set it."""
    state = known(facts.file(DRIVER_PARAMETERS), None)
    found = {match["what"]: int(match["value"]) for match in _IN_USE.finditer(_text(state.content) if state else "")}
    if "Mode" in found and (effect := _closed(found["Mode"], found.get("GID", 0))):
        yield f"the loaded driver {effect} ({DRIVER_PARAMETERS}); options of the module nvidia set that"


def _closed(mode: int, group: int) -> str:
    """Return what a mode of the device files does to users; empty where others, or a group of its own, may open them.

    Source: the README of NVIDIA's driver, "How can I specify the permissions of the device files?".
    """
    if mode & 0o006 == 0o006 or (mode & 0o060 == 0o060 and group != 0):
        return ""
    return f"gives {_DEVICE_FILES} the mode {mode & 0o777:04o}, so users other than root cannot use a GPU"


def _value(options: list[str], name: str) -> int | None:
    values = [option.removeprefix(name) for option in options if option.startswith(name)]
    return _number(values[-1]) if values else None


def _number(text: str) -> int | None:
    """Return a module parameter as the kernel reads it: hexadecimal after 0x, octal after 0 (kstrtol, base 0)."""
    try:
        return int(text, 16 if text[:2].lower() == "0x" else 8 if text[:1] == "0" else 10)
    except ValueError:
        return None


def _old_initramfs(facts: Facts) -> Iterator[str]:
    """Yield a note for each initramfs of a kernel that will boot and that was made before the blacklist was."""
    written = facts.modified_at.get(BLACKLIST)
    kernels = facts.kernels.value.wanted if not isinstance(facts.kernels, Unknown) else ()
    for kernel in kernels:
        image = system(facts).initramfs_image(kernel)
        made = facts.modified_at.get(image)
        if written is not None and made is not None and made < written:
            yield (
                f"{image} is older than {BLACKLIST}, so nouveau may take the GPU early in the next boot: "
                f"`{command('sudo', *system(facts).rebuild_initramfs(kernel))}` rebuilds it"
            )


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
