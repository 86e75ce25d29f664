from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from hashlib import md5

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.change import FileState, PackageState, ServiceState
from gpunode.errors import Undetermined
from gpunode.facts.derive import derive
from gpunode.facts.evidence import Capture, Evidence, GlobMatch, Ownership, ProbeOutcome, decode_matches, encode_matches
from gpunode.facts.model import Facts, Kernels, Known, Unit, Unknown, require
from gpunode.facts.probes import PROBES, list_probes
from gpunode.package_id import PackageId

STATUS = (
    "Package: dpkg\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1.21.22\n\n"
    "Package: nvidia-driver\nStatus: install ok installed\nArchitecture: amd64\nVersion: 470.256.02-1\n"
)
LISTED = "/etc/apt/sources.list.d/x.list"


def ok(source: str, text: str) -> Capture:
    return Capture(source, "ok", text.encode(), ownership=Ownership(0o640, 0, 4))


def listing(source: str, *found: GlobMatch) -> Capture:
    return Capture(source, "ok", encode_matches(iter(found)))


def node(**changed: Capture | None) -> Evidence:
    """Return a converged-looking node; keys use ``_`` for ``-``; None removes the capture."""
    usual = {probe.key: Capture(probe.source, "absent") for probe in PROBES}
    usual |= {
        "os-release": ok("/etc/os-release", 'ID=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\nNAME="Debian"\n'),
        "kernel-release": ok("uname -r", "6.1.0-25-amd64\n"),
        "boot-id": ok("/proc/sys/kernel/random/boot_id", "e2ee6a7f\n"),
        "boot-images": listing("/boot/vmlinuz-*", GlobMatch("/boot/vmlinuz-6.1.0-25-amd64")),
        "dpkg-status": ok("/var/lib/dpkg/status", STATUS),
        "virt": Capture("systemd-detect-virt", "failed", b"none\n", exit_status=1),
        "file:/etc/containerd/config.toml": ok("/etc/containerd/config.toml", "version = 2\n"),
        "apt-sources-d": listing("/etc/apt/sources.list.d/*", GlobMatch(LISTED, data=b"deb https://r/ /\n")),
        "modprobe-d": listing("/etc/modprobe.d/*"),
    }
    usual |= {key.replace("_", "-"): capture for key, capture in changed.items() if capture}
    return {key: capture for key, capture in usual.items() if changed.get(key.replace("-", "_"), capture) is not None}


def test_facts_of_an_ordinary_node() -> None:
    facts = derive(node())
    assert require(facts.distro, "the distribution").codename == "bookworm"
    assert require(facts.architecture, "the architecture") == "amd64"
    assert require(facts.platform, "the platform").kind == "bare-metal"
    assert require(facts.kernels, "the kernels") == Kernels("6.1.0-25-amd64", ("6.1.0-25-amd64",))
    assert require(facts.packages, "the packages")[PackageId("nvidia-driver")] == PackageState("470.256.02-1")
    assert require(facts.loaded_driver, "the driver") is None
    assert [one.uri for one in require(facts.sources, "the sources")] == ["https://r/"]
    assert facts.file("/etc/containerd/config.toml") == Known(
        FileState(b"version = 2\n", 0o640, 0, 4), "file:/etc/containerd/config.toml"
    )


def test_small_program_in_place_of_the_toolkits_is_known_by_its_checksum() -> None:
    """A file as its package shipped it, or one of no package, does not count."""
    shipped = md5(b"shipped").hexdigest()
    names = ("bin/nvidia-ctk", "bin/nvidia-cx", "bin/nvidia-container-runtime", "lib/libnvidia-container.so.1")
    sums = "".join(f"{shipped}  usr/{name}\n" for name in names).encode()
    programs = (
        GlobMatch("/usr/bin/nvidia-ctk", data=b"#!/bin/sh\n"),
        GlobMatch("/usr/bin/nvidia-cx", data=b"shipped"),
        GlobMatch("/usr/bin/nvidia-cy", data=b"mine"),
    )
    facts = derive(
        node(
            toolkit_programs=listing("/usr/bin/nvidia-c*", *programs),
            dpkg_toolkit_checksums=listing("x", GlobMatch("/var/lib/dpkg/info/x.md5sums", data=sums)),
        )
    )
    assert facts.replaced_programs == Known(("/usr/bin/nvidia-ctk",), "toolkit-programs")
    assert facts.lost_programs == Known(("/usr/bin/nvidia-container-runtime",), "toolkit-programs")


def test_match_nested_too_deeply_is_no_bug() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        decode_matches(b'{"a":' * 100_000)


def test_file_is_missing_only_if_it_was_probed() -> None:
    facts = derive(node(apt_preferences_d=Capture("/etc/apt/preferences.d/*", "denied", error="Permission denied")))
    assert facts.file("/etc/docker/daemon.json") == Known(None, "file:/etc/docker/daemon.json")
    assert facts.file("/etc/modprobe.d/nouveau.conf") == Known(None, "modprobe-d")
    assert isinstance(facts.file("/etc/apt/preferences.d/gpunode-nvidia"), Unknown)
    assert isinstance(facts.file("/etc/cufile.json"), Unknown)


def unknown_facts(facts: Facts) -> set[str]:
    return {one.name for one in dataclasses.fields(facts) if isinstance(getattr(facts, one.name), Unknown)}


def test_missing_evidence_gives_unknown_facts() -> None:
    facts = derive({})
    assert unknown_facts(facts) >= {"distro", "platform", "devices", "packages", "modules", "loaded_driver", "sources"}
    assert all(isinstance(unit, Unknown) for unit in facts.units.values())
    with pytest.raises(Undetermined, match="the packages"):
        require(facts.packages, "the packages")


@pytest.mark.parametrize(
    ("key", "fact"),
    [
        ("dpkg_status", "packages"),
        ("apt_extended_states", "packages"),
        ("dpkg_updates", "packages_interrupted"),
        ("modules", "modules"),
        ("nvidia_version", "loaded_driver"),
        ("apt_sources_d", "sources"),
        ("dkms_installed", "module_files"),
        ("kernel_builds", "headers"),
        ("boot_images", "kernels"),
    ],
)
@pytest.mark.parametrize("outcome", ["denied", "failed", "timeout"])
def test_failed_probe_gives_an_unknown_fact(key: str, fact: str, outcome: ProbeOutcome) -> None:
    facts = derive(node(**{key: Capture("the source", outcome, error="the system's word")}))
    unknown = getattr(facts, fact)
    assert isinstance(unknown, Unknown)
    assert "the system's word" in unknown.reason
    assert unknown.probe == key.replace("_", "-")


def test_sysfs_replaces_a_missing_lspci() -> None:
    alias = GlobMatch(
        "/sys/bus/pci/devices/0000:01:00.0/modalias", data=b"pci:v000010DEd00001B80sv00001043sd000085AAbc03sc00i00\n"
    )
    facts = derive(node(pci_modalias=listing("/sys/bus/pci/devices/*/modalias", alias)))
    assert [one.device for one in require(facts.devices, "the devices")] == ["1b80"]
    assert isinstance(derive(node()).devices, Unknown)


def test_image_does_not_use_facts_of_the_running_kernel() -> None:
    loaded = ok("/proc/modules", "nouveau 1 0 - Live 0x0\n")
    facts = derive(node(modules=loaded, units=ok("systemctl show x.service", "Id=x.service\n")), image=True)
    assert require(facts.platform, "the platform").kind == "image"
    assert require(facts.kernels, "the kernels").running is None
    assert require(facts.modules, "the modules") == frozenset()
    assert isinstance(facts.boot_id, Unknown)
    assert isinstance(facts.devices, Unknown)
    assert facts.units["x.service"] == Known(Unit(ServiceState(False, False), exists=False), "unit-wants")


def test_image_facts_come_from_stored_files() -> None:
    asked = list_probes(image=True)
    assert not any(probe.argv or probe.source.startswith(("/proc", "/sys", "/dev")) for probe in asked)
    evidence = node(unit_files_lib=listing("", GlobMatch("/lib/systemd/system/crio.service")))
    facts = derive({probe.key: evidence[probe.key] for probe in asked}, image=True)
    assert unknown_facts(facts) == {"boot_id", "devices", "observed_on", "secure_boot"}
    assert facts.unit("crio.service") == Known(Unit(ServiceState(False, False)), "unit-wants")
    assert isinstance(facts.unit("nobody-asked.service"), Unknown)


def test_unit_states_are_read_from_files_without_systemd() -> None:
    error = "System has not been booted with systemd as init system (PID 1). Can't operate.\n"
    units = Capture("systemctl show containerd.service", "failed", error=error, exit_status=1)
    wants = listing("", GlobMatch("/etc/systemd/system/multi-user.target.wants/containerd.service"))
    files = listing("", GlobMatch("/lib/systemd/system/containerd.service"))
    facts = derive(node(units=units, unit_wants=wants, unit_files_lib=files))
    assert facts.units["containerd.service"] == Known(Unit(ServiceState(True, False)), "unit-wants")


def test_systemctl_in_a_chroot_gives_unknown_units() -> None:
    error = "Running in chroot, ignoring command 'show'\n"
    facts = derive(node(units=Capture("systemctl show docker.service", "ok", error=error, exit_status=0)))
    assert facts.units["docker.service"] == Unknown("Running in chroot, ignoring command 'show'", "units")


def test_unresponsive_systemd_gives_unknown_units() -> None:
    facts = derive(node(units=Capture("systemctl show docker.service", "timeout")))
    assert isinstance(facts.units["docker.service"], Unknown)


def test_kernel_without_modules_has_none_loaded() -> None:
    assert derive(node()).modules == Known(frozenset(), "modules")
    assert isinstance(derive(node(boot_id=Capture("/proc", "absent"))).modules, Unknown)


def test_additional_units_are_probed() -> None:
    asked = {probe.key: probe for probe in list_probes(["crio.service"])}
    assert "crio.service" in asked["units"].argv
    assert len(asked) == len(list_probes(["crio.service"]))


KEYS = st.sampled_from([probe.key for probe in PROBES])
CAPTURES = st.builds(
    Capture,
    source=st.just("x"),
    outcome=st.sampled_from(["ok", "ok", "absent", "denied", "failed", "timeout"]),
    data=st.one_of(
        st.binary(max_size=80),
        st.lists(
            st.builds(GlobMatch, path=st.text(max_size=20), link=st.text(max_size=9), data=st.binary(max_size=9))
        ).map(lambda found: encode_matches(iter(found))),
    ),
)


@given(st.dictionaries(KEYS, CAPTURES), st.booleans())
def test_derive_never_fails(evidence: Mapping[str, Capture], image: bool) -> None:
    packages = derive({**node(), **evidence}, image=image).packages
    assert isinstance(packages, Known | Unknown)
