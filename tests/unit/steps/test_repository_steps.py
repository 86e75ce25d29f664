"""NVIDIA's archives on a machine that was changed before."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpunode.catalog import openpgp
from gpunode.change import FileChange, FileState, PackageChange, PackageState, SigningKey
from gpunode.errors import Refused
from gpunode.facts.model import Facts, Known
from gpunode.facts.project import project_changes
from gpunode.outcome import Planned, Refusal
from gpunode.package_id import PackageId
from gpunode.recipe import Recipe, Repositories
from gpunode.steps.packages import CUDA_REPOSITORY_STEP, REPAIR_STEP, TOOLKIT_REPOSITORY_STEP
from tests.unit.steps.machines import (
    CUDA_KEYRING,
    CUDA_LIST,
    CUDA_URI,
    TOOLKIT_KEYRING,
    TOOLKIT_LIST,
    UBUNTU,
    files,
    machine,
    planned,
    recipe,
    refusal,
)

TOOLKIT_URI = "https://nvidia.github.io/libnvidia-container/stable/deb"
NVIDIA_CUDA = f"deb [signed-by={CUDA_KEYRING}] {CUDA_URI} /\n".encode()


def _packet(body: bytes) -> bytes:
    return b"\x99" + len(body).to_bytes(2, "big") + body


KEY, EXTRA = _packet(b"\x04one key"), _packet(b"\x04another")
FINGERPRINT = openpgp.list_key_fingerprints(KEY)[0]
ARMORED = b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nmQAIBG9uZSBrZXk=\n-----END PGP PUBLIC KEY BLOCK-----\n"
# A mirror's own key replaces NVIDIA's, since its bytes can be made here.
MINE = Recipe(
    "test",
    repositories=Repositories(cuda_key_fingerprint=FINGERPRINT, toolkit_key_fingerprint=FINGERPRINT),
    runtime=recipe("docker").runtime,
)


def cuda(text: bytes | FileState = NVIDIA_CUDA, keyring: bytes | FileState | None = KEY, **more: bytes) -> Facts:
    held = {} if keyring is None else {CUDA_KEYRING: keyring}
    return machine(files={CUDA_LIST: text, **held, **{f"/etc/apt/sources.list.d/{k}": v for k, v in more.items()}})


def test_bare_machine_gets_key_and_list_and_one_refresh() -> None:
    outcome = planned(CUDA_REPOSITORY_STEP.plan(recipe(), machine()))
    changes = files(outcome.changes)
    assert set(changes) == {CUDA_LIST, CUDA_KEYRING}
    key = changes[CUDA_KEYRING].after
    assert isinstance(key, SigningKey)
    assert len(key.fingerprints) == 1
    assert len({trigger for change in changes.values() for trigger in change.triggers}) == 1


def test_entry_of_cuda_keyring_is_kept() -> None:
    assert planned(CUDA_REPOSITORY_STEP.plan(MINE, cuda())).changes == ()


@pytest.mark.parametrize(
    "entry",
    [
        f"deb [arch=amd64 signed-by={CUDA_KEYRING}] {CUDA_URI} /\n",
        f"deb [ signed-by={CUDA_KEYRING} ] {CUDA_URI.rstrip('/')} /\n",
        f"# by hand\n\ndeb\t[signed-by={CUDA_KEYRING}]\t{CUDA_URI}\t/ # NVIDIA\n",
    ],
)
def test_other_spellings_of_the_same_entry_are_accepted(entry: str) -> None:
    assert planned(CUDA_REPOSITORY_STEP.plan(MINE, cuda(entry.encode()))).changes == ()


def test_same_archive_in_a_deb822_file_is_accepted() -> None:
    entry = f"Types: deb\nURIs: {CUDA_URI}\nSuites: /\nSigned-By: {CUDA_KEYRING}\n".encode()
    node = machine(files={"/etc/apt/sources.list.d/nvidia.sources": entry, CUDA_KEYRING: KEY})
    assert planned(CUDA_REPOSITORY_STEP.plan(MINE, node)).changes == ()


def test_new_key_refreshes_the_file_that_names_the_archive() -> None:
    """gpunode refreshes a single list file; the one with gpunode's own name does not exist."""
    path = "/etc/apt/sources.list.d/nvidia.sources"
    entry = f"Types: deb\nURIs: {CUDA_URI}\nSuites: /\nSigned-By: {CUDA_KEYRING}\n".encode()
    outcome = planned(CUDA_REPOSITORY_STEP.plan(MINE, machine(files={path: entry, CUDA_KEYRING: EXTRA})))
    assert {trigger.target for change in files(outcome.changes).values() for trigger in change.triggers} == {path}


@pytest.mark.parametrize(
    "keyring",
    [KEY + EXTRA, EXTRA, b"", b"<html>captive portal</html>", ARMORED],
    ids=["an extra key", "another key", "empty", "no key", "armored in a .gpg"],
)
def test_untrusted_keyring_is_fetched_again(keyring: bytes) -> None:
    assert set(files(planned(CUDA_REPOSITORY_STEP.plan(MINE, cuda(keyring=keyring))).changes)) == {CUDA_KEYRING}


@pytest.mark.parametrize(
    "state",
    [
        FileState(KEY, 0o600),
        FileState(KEY, 0o666),
        FileState(KEY, 0o664, gid=1000),
        FileState(KEY, 0o644, uid=1000),
    ],
    ids=["unreadable for apt", "for all to write", "for a group to write", "a user's"],
)
def test_right_key_with_the_wrong_mode_is_rewritten_without_a_download(state: FileState) -> None:
    (change,) = planned(CUDA_REPOSITORY_STEP.plan(MINE, cuda(keyring=state))).changes
    assert change == FileChange(CUDA_KEYRING, state, FileState(KEY))


@pytest.mark.parametrize("mode", [0o600, 0o666])
def test_own_list_with_the_wrong_mode_is_rewritten(mode: int) -> None:
    own = FileState(NVIDIA_CUDA, mode)
    (change,) = planned(CUDA_REPOSITORY_STEP.plan(MINE, cuda(own))).changes
    assert change == FileChange(CUDA_LIST, own, FileState(NVIDIA_CUDA))
    path = "/etc/apt/sources.list.d/mine.list"
    facts = machine(files={path: own, CUDA_KEYRING: KEY})
    assert planned(CUDA_REPOSITORY_STEP.plan(MINE, facts)).changes == ()


def test_armored_key_counts_the_same_and_is_written_in_binary() -> None:
    assert openpgp.list_key_fingerprints(ARMORED) == (FINGERPRINT,)
    assert openpgp.verify_keyring(ARMORED, SigningKey("x", frozenset({FINGERPRINT}))) == KEY


def test_disabled_list_is_enabled() -> None:
    assert set(files(planned(CUDA_REPOSITORY_STEP.plan(MINE, cuda(b"# " + NVIDIA_CUDA))).changes)) == {CUDA_LIST}


def test_entry_with_another_key_is_removed() -> None:
    rival = f"deb [signed-by=/etc/apt/keyrings/mine.gpg] {CUDA_URI} /\n".encode()
    changes = files(planned(CUDA_REPOSITORY_STEP.plan(MINE, cuda(**{"mine.list": rival}))).changes)
    assert changes["/etc/apt/sources.list.d/mine.list"].after is None


def test_file_with_other_archives_is_refused_and_not_removed() -> None:
    own = "deb http://mirror.example.org/debian bookworm main\n"
    rival = f"deb [signed-by=/etc/apt/keyrings/mine.gpg] {CUDA_URI} /\n{own}"
    no = refusal(CUDA_REPOSITORY_STEP.plan(MINE, cuda(**{"mine.list": rival.encode()})))
    assert "mine.list:1" in no.what
    crowded = (
        NVIDIA_CUDA.replace(b"signed-by", b"trusted=no signed-by-no")
        + b"deb http://mirror.example.org/debian bookworm main\n"
    )
    no = refusal(CUDA_REPOSITORY_STEP.plan(MINE, cuda(crowded)))
    assert CUDA_LIST in no.what


def test_disabled_conflicting_entry_is_kept() -> None:
    rival = f"# deb [signed-by=/etc/apt/keyrings/mine.gpg] {CUDA_URI} /\n".encode()
    assert planned(CUDA_REPOSITORY_STEP.plan(MINE, cuda(**{"mine.list": rival}))).changes == ()


def test_key_file_of_a_rotation_needs_both_keys_named() -> None:
    """A transition file holds the old key and the new one; a keyring with one of them is not enough."""
    other = openpgp.list_key_fingerprints(EXTRA)[0]
    both = replace(
        MINE, repositories=Repositories(cuda_key_fingerprint=f"{FINGERPRINT} {other}", cuda_key_file="new.pub")
    )
    assert planned(CUDA_REPOSITORY_STEP.plan(both, cuda(keyring=KEY + EXTRA))).changes == ()
    change = files(planned(CUDA_REPOSITORY_STEP.plan(both, cuda())).changes)[CUDA_KEYRING]
    assert isinstance(change.after, SigningKey)
    assert change.after == SigningKey(f"{CUDA_URI.rstrip('/')}/new.pub", frozenset({FINGERPRINT, other}))
    assert openpgp.verify_keyring(KEY + EXTRA, change.after) == KEY + EXTRA
    with pytest.raises(Refused, match="not the expected key"):
        openpgp.verify_keyring(KEY, change.after)


def test_mirror_replaces_the_nvidia_address() -> None:
    mirrored = Recipe(
        "test", repositories=Repositories(cuda="https://mirror.example/cuda", cuda_key_fingerprint=FINGERPRINT)
    )
    changes = files(planned(CUDA_REPOSITORY_STEP.plan(mirrored, cuda())).changes)
    assert b"https://mirror.example/cuda/debian12/x86_64/" in getattr(changes[CUDA_LIST].after, "content", b"")
    assert set(changes) == {CUDA_LIST}


def test_system_without_an_nvidia_repository_is_refused() -> None:
    assert refusal(CUDA_REPOSITORY_STEP.plan(recipe(), machine(architecture="arm64"))).hint
    ubuntu = files(planned(CUDA_REPOSITORY_STEP.plan(recipe(), machine(distro=UBUNTU, architecture="arm64"))).changes)
    assert any("ubuntu2404-sbsa" in path for path in ubuntu)


@pytest.mark.parametrize("arch", ["$(ARCH)", "amd64"])
def test_architecture_may_be_spelled_out(arch: str) -> None:
    entry = f"deb [signed-by={TOOLKIT_KEYRING}] {TOOLKIT_URI}/{arch} /\n".encode()
    node = machine(files={TOOLKIT_LIST: entry, TOOLKIT_KEYRING: KEY})
    assert planned(TOOLKIT_REPOSITORY_STEP.plan(MINE, node)).changes == ()


def test_conflicting_entry_with_a_literal_architecture_is_removed() -> None:
    rival = f"deb [signed-by=/usr/share/keyrings/mine.gpg] {TOOLKIT_URI}/amd64 /\n".encode()
    changes = files(
        planned(TOOLKIT_REPOSITORY_STEP.plan(MINE, machine(files={"/etc/apt/sources.list.d/ctk.list": rival}))).changes
    )
    assert changes["/etc/apt/sources.list.d/ctk.list"].after is None
    assert TOOLKIT_LIST in changes


def test_obsolete_nvidia_docker_repositories_are_removed() -> None:
    old = (
        b"deb https://nvidia.github.io/libnvidia-container/stable/debian10/$(ARCH) /\n"
        b"#deb https://nvidia.github.io/libnvidia-container/experimental/debian10/$(ARCH) /\n"
        b"deb https://nvidia.github.io/nvidia-docker/debian10/$(ARCH) /\n"
    )
    path = "/etc/apt/sources.list.d/nvidia-docker.list"
    assert files(planned(TOOLKIT_REPOSITORY_STEP.plan(MINE, machine(files={path: old}))).changes)[path].after is None


def test_experimental_channel_is_kept() -> None:
    entries = "".join(
        f"deb [signed-by={TOOLKIT_KEYRING}] {TOOLKIT_URI.replace('stable', c)}/$(ARCH) /\n"
        for c in ("stable", "experimental")
    )
    node = machine(files={TOOLKIT_LIST: entries.encode(), TOOLKIT_KEYRING: KEY})
    assert planned(TOOLKIT_REPOSITORY_STEP.plan(MINE, node)).changes == ()


RELAXED = (
    "trusted=yes",
    "Trusted=on",
    "allow-insecure=yes",
    "allow-weak=true",
    "allow-downgrade-to-insecure=1",
    "check-valid-until=no",
    "check-date=no",
)
SPELLINGS = (
    CUDA_URI,
    CUDA_URI.rstrip("/"),
    CUDA_URI.replace("https:", "http:"),
    CUDA_URI.replace("developer", "Developer"),
    CUDA_URI.replace(".com/", ".com:443//"),
    CUDA_URI.replace(".com/", ".com:0443/"),
    CUDA_URI.replace("https:", "HTTPS:"),
    CUDA_URI.replace("x86_64", "%78%38%36_64"),
    CUDA_URI.replace("debian12", "ubuntu2204/../debian12"),
    CUDA_URI.replace("https:", "mirror+https:"),
    CUDA_URI.replace("https:", "tor+http:"),
)


@pytest.mark.parametrize("option", RELAXED)
def test_option_that_weakens_signature_checks_is_removed(option: str) -> None:
    relaxed = NVIDIA_CUDA.replace(b"signed-by", f"{option} signed-by".encode())
    outcome = planned(CUDA_REPOSITORY_STEP.plan(MINE, cuda(relaxed)))
    (change,) = outcome.changes
    assert isinstance(change, FileChange)
    assert change.after == FileState(NVIDIA_CUDA)
    assert f"{CUDA_LIST}:1 names it with {option.lower()}" in outcome.reason


@pytest.mark.parametrize("uri", SPELLINGS)
def test_untrusted_entry_in_another_spelling_is_removed(uri: str) -> None:
    rival = f"deb [trusted=yes] {uri} /\n".encode()
    outcome = planned(CUDA_REPOSITORY_STEP.plan(MINE, cuda(**{"mine.list": rival})))
    assert files(outcome.changes)["/etc/apt/sources.list.d/mine.list"].after is None
    assert "mine.list:1 names it with trusted=yes" in outcome.reason


@pytest.mark.parametrize("uri", [uri.replace("debian12", "ubuntu2204") for uri in SPELLINGS])
def test_entry_for_another_release_is_removed_whatever_its_key(uri: str) -> None:
    text = f"Types: deb\nURIs: {uri}\nSuites: /\nSigned-By: {CUDA_KEYRING}\n".encode()
    outcome = planned(CUDA_REPOSITORY_STEP.plan(MINE, cuda(**{"other.sources": text})))
    assert files(outcome.changes)["/etc/apt/sources.list.d/other.sources"].after is None
    assert "other.sources:1 names it for another system (ubuntu2204, where this one needs debian12)" in outcome.reason
    beside = text + b"\nTypes: deb\nURIs: https://example.org/debian\nSuites: /\n"
    no = refusal(CUDA_REPOSITORY_STEP.plan(MINE, cuda(**{"other.sources": beside})))
    assert "other.sources:1" in no.what
    assert "ubuntu2204" in no.what


def test_mirror_list_address_does_not_count() -> None:
    listed = NVIDIA_CUDA.replace(b"https:", b"mirror+https:")
    outcome = planned(CUDA_REPOSITORY_STEP.plan(MINE, cuda(listed)))
    assert set(files(outcome.changes)) == {CUDA_LIST}
    assert "mirror+https" in outcome.reason


def test_unsigned_deb822_entry_is_removed() -> None:
    text = f"Types: deb\nURIs: {CUDA_URI}\nSuites: /\nSigned-By: {CUDA_KEYRING}\nTrusted: yes\n"
    outcome = planned(CUDA_REPOSITORY_STEP.plan(MINE, cuda(**{"mine.sources": text.encode()})))
    assert files(outcome.changes)["/etc/apt/sources.list.d/mine.sources"].after is None


def test_entry_for_another_architecture_does_not_count() -> None:
    foreign = NVIDIA_CUDA.replace(b"signed-by", b"arch=arm64 signed-by")
    assert set(files(planned(CUDA_REPOSITORY_STEP.plan(MINE, cuda(foreign))).changes)) == {CUDA_LIST}


def test_unknown_key_in_the_keyring_is_named() -> None:
    (stranger,) = openpgp.list_key_fingerprints(EXTRA)
    for held in (KEY + EXTRA, EXTRA):
        assert (
            f"{CUDA_KEYRING} holds the key {stranger}"
            in planned(CUDA_REPOSITORY_STEP.plan(MINE, cuda(keyring=held))).reason
        )


_ENTRIES = st.lists(
    st.builds(
        "{}deb {}{} {}\n".format,
        st.sampled_from(("", "# ")),
        st.sampled_from(
            (
                "",
                f"[signed-by={CUDA_KEYRING}] ",
                "[signed-by=/mine.gpg] ",
                "[arch=amd64] ",
                *(f"[signed-by={CUDA_KEYRING} {option}] " for option in RELAXED),
            )
        ),
        st.sampled_from((*SPELLINGS, f"{TOOLKIT_URI}/$(ARCH)", "http://deb.example/a")),
        st.sampled_from(("/", "./")),
    ),
    max_size=3,
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(("cuda-debian12-x86_64.list", "mine.list", "nvidia-docker.list")), _ENTRIES))
def test_one_key_signs_the_archive_afterwards_and_other_entries_remain(
    written: dict[str, list[str]],
) -> None:
    node = machine(files={f"/etc/apt/sources.list.d/{name}": "".join(e).encode() for name, e in written.items()})
    outcome = CUDA_REPOSITORY_STEP.plan(MINE, node)
    if not isinstance(outcome, Planned):
        return
    after = project_changes(node, outcome.changes)
    assert isinstance(after.sources, Known)
    assert isinstance(node.sources, Known)
    ours = {(s.signed_by, s.relaxed) for s in after.sources.value if s.enabled and s.uri in SPELLINGS}
    assert ours == {(CUDA_KEYRING, ())}
    others = {s.uri for s in node.sources.value if s.enabled and s.signed_by != CUDA_KEYRING}
    lost = others - {s.uri for s in after.sources.value}
    assert lost <= {*SPELLINGS}
    again = planned(CUDA_REPOSITORY_STEP.plan(MINE, after))
    assert set(files(again.changes)) <= {CUDA_KEYRING}


def test_keyring_folder_closed_to_apt_is_refused_before_a_list_is_written() -> None:
    refused = CUDA_REPOSITORY_STEP.plan(recipe(), replace(machine(), folder_modes={"/usr/share/keyrings": 0o700}))
    assert isinstance(refused, Refusal)
    assert refused.hint.startswith("sudo chmod 0755 /usr/share/keyrings\n")


def unfinished(packages: dict[str, str], *also: str) -> Facts:
    """Return a node on which these packages are unpacked but not configured."""
    cut = machine(packages=packages, packages_interrupted=Known(value=True, probe="x"))
    return replace(cut, unconfigured=frozenset(map(PackageId, (*packages, *also))))


OLD = {"nvidia-kernel-dkms": "470.256.02-2"}
HEADERS = "linux-headers-6.1.0-18-amd64"


def repairs(wanted: Recipe, cut: Facts) -> bool:
    return bool(planned(REPAIR_STEP.plan(wanted, cut)).changes)


@pytest.mark.parametrize("also", [(), (HEADERS,)])
def test_old_module_that_did_not_build_is_not_built_before_it_leaves(also: tuple[str, ...]) -> None:
    assert not repairs(recipe(), unfinished(OLD, *also))


@pytest.mark.parametrize(
    "kernel",
    [HEADERS, "linux-image-6.1.0-18-amd64", "proxmox-kernel-6.11.11-2-pve-signed", "pve-headers-5.15.158-2-pve"],
)
def test_kernel_that_builds_the_leaving_module_is_not_configured_first(kernel: str) -> None:
    cut = machine(packages={**OLD, kernel: "6.1.76-1"}, packages_interrupted=Known(value=True, probe="x"))
    assert not repairs(recipe(), replace(cut, unconfigured=frozenset({PackageId(kernel)})))


def test_package_that_builds_nothing_is_configured_first() -> None:
    cut = machine(packages={**OLD, "nginx": "1.22"}, packages_interrupted=Known(value=True, probe="x"))
    assert repairs(recipe(), replace(cut, unconfigured=frozenset({PackageId("nginx")})))


def test_old_module_is_not_built_before_a_run_driver_goes() -> None:
    cut = replace(unfinished({"nvidia-tesla-470-kernel-dkms": "470.256.02-2"}), run_installer=Known(True, "x"))
    assert not repairs(replace(recipe(), remove_runfile_driver=True), cut)
    assert repairs(recipe(), cut), "the .run driver stays, and with it the refusal"


def test_wanted_module_beside_an_old_one_waits_for_it_to_leave() -> None:
    both = {"nvidia-tesla-470-kernel-dkms": "470.256.02-2", "nvidia-kernel-open-dkms": "595.91.07-1"}
    assert not repairs(recipe(), unfinished(both))


@pytest.mark.parametrize("package", ["nvidia-kernel-open-dkms", "zfs-dkms"])
@pytest.mark.parametrize("upgrade", [False, True])
def test_module_that_stays_is_repaired_first(package: str, *, upgrade: bool) -> None:
    assert repairs(replace(recipe(), upgrade=upgrade), unfinished({package: "595.91.07-1"}))


def test_module_that_no_selected_step_removes_is_repaired() -> None:
    assert repairs(replace(recipe(), skip=("conflicts", "driver")), unfinished(OLD))


def test_packages_that_leave_need_no_repair_afterwards() -> None:
    cut = unfinished(OLD)
    changes = [PackageChange(PackageId("nvidia-kernel-dkms"), PackageState("470.256.02-2"), None)]
    assert not repairs(recipe(), project_changes(cut, changes))


def test_interrupted_dpkg_is_repaired_first() -> None:
    assert planned(REPAIR_STEP.plan(recipe(), machine(packages_interrupted=Known(value=True, probe="x")))).changes
    assert planned(REPAIR_STEP.plan(recipe(), machine())).changes == ()
