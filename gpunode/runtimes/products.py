"""containerd of Kubernetes distributions, which regenerate its file at every start. Pure.

k3s and RKE2 generate it from a template and their PATH. gpunode writes a drop-in if the generated file imports a folder
of them. Otherwise the product registers NVIDIA's runtime itself, and gpunode restarts it if needed. The default runtime
is a setting of the product. Templates belong to the user: gpunode reads them, and removes what an earlier gpunode wrote
into one.

k0s watches a folder of drop-ins. Releases with containerd 1.7 merge those of schema 2 into the defaults themselves;
later ones make containerd import them, and only accept schema 3. Either way a drop-in contains only what it adds, in
the schema of the generated file. A file without k0s' mark in its first line belongs to the administrator.

microk8s fills the snap's variables into a TOML file, which is edited in place: a variable is part of a string. In a
drop-in they would not be filled in.

Source: docs.k3s.io and docs.rke2.io, "Configuring containerd" and "Alternative Container Runtime Support"; k3s PR 3890
(runtimes are found at the start, August 2021, v1.22), PR 13680 (drop-in folders, February 2026), PR 8751
(--default-runtime, November 2023), PR 11626 (config-v3.toml.tmpl); pkg/agent/containerd/runtimes.go (what is found);
pkg/configfilearg (config.yaml.d; a setting that a version does not know is skipped with a warning).
docs.k0sproject.io, "Runtime"; k0s pkg/component/worker/containerd (component.go, configurer.go) of 1.30 and 1.36; k0s
issue 6547 (a drop-in that says more than it adds takes the node down).
canonical/microk8s microk8s-resources (default-args/containerd-template.toml; wrappers/run-containerd-with-args, which
fills in ${SNAP}, ${RUNTIME} and others with sed); microk8s issue 3959; gpu-operator issue 1367 (with docker's
containerd on the PATH the toolkit took the wrong one's settings).
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, ClassVar, Final

from gpunode.errors import Refused
from gpunode.facts.model import Facts, Kubelet, value_or
from gpunode.fast_dataclass import dataclass
from gpunode.runtimes import containerd, containerd_files
from gpunode.runtimes.containerd_files import ConfigFile, first_merging_version, imports_matching, parse_config
from gpunode.runtimes.model import ConfigEdit, DesiredConfig, Edit, Files, ObservedConfig, Removal, Runtime

_DROP_IN_FILE_NAME: Final = "99-nvidia.toml"
# What k3s registers by itself: each handler with the program that k3s looks for.
_DETECTED_PROGRAM_BY_HANDLER: Final = {
    "nvidia": "nvidia-container-runtime",
    "nvidia-cdi": "nvidia-container-runtime.cdi",
    "nvidia-experimental": "nvidia-container-runtime-experimental",
}
_DETECTION_PATH_FOLDERS: Final = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
# A template that includes the runtimes that the product finds, as its base template does.
_DETECTED_RUNTIMES_TEMPLATE: Final = re.compile(rb"""\{\{-?\s*template\s+["`]base["`]|\.ExtraRuntimes\b""")
_K0S_CONFIG_FILE: Final = "/etc/k0s/containerd.toml"
_K0S_DROP_IN_FOLDER: Final = "/etc/k0s/containerd.d"
_K0S_DROP_IN: Final = f"{_K0S_DROP_IN_FOLDER}/{_DROP_IN_FILE_NAME}"
_MANAGED_BY_K0S_LINE: Final = "# k0s_managed=true"
_MICROK8S_TEMPLATE: Final = "/var/snap/microk8s/current/args/containerd-template.toml"


@dataclass(frozen=True, slots=True)
class BundledContainerd:
    """The containerd of one product.

    Attributes:
        product: its id.
        config: the root file.
        read_paths: other paths and patterns that it reads.
        beside: the files that configure it, other than ``config``.
    """

    # Returns ``desired`` for the root file, and for the drop-in that counts.
    locate: ClassVar[Callable[[Any, Files, DesiredConfig], DesiredConfig]]
    configure: ClassVar[Callable[[Any, Files, DesiredConfig], ConfigEdit]]

    product: str
    config: str
    read_paths: tuple[str, ...] = ()
    beside: frozenset[str] = frozenset()

    def make_row(self, usual: Runtime, kubelet: Kubelet, unit: str) -> Runtime:
        """Return the row of this containerd, which has no package of its own; ``usual`` is a packaged one's row."""
        return replace(
            usual,
            product=self.product,
            unit=unit,
            socket=kubelet.socket,
            config=self.config,
            drop_in="",
            settings_files=self.beside,
            packages=(),
            config_packages=frozenset(),
            list_read_paths=self.list_read_paths,
            configure=self.configure,
            inspect=self.inspect,
            layers=lambda files, desired: containerd.layers(files, self.locate(files, desired)),
            complete_removal=self.complete_removal,
        )

    def list_read_paths(self, files: Files, desired: DesiredConfig) -> tuple[str, ...]:
        """Return every path that matters, as far as ``files`` tell."""
        paths = containerd_files.list_read_paths(files, self.locate(files, desired))
        return tuple(dict.fromkeys((*paths, *self.read_paths)))

    def inspect(self, files: Files, desired: DesiredConfig) -> ObservedConfig:
        """Return what containerd reads."""
        return containerd.inspect(files, self.locate(files, desired))

    def complete_removal(self, removal: Removal, desired: DesiredConfig) -> Removal:
        """Return the removal with what else containerd needs."""
        return containerd.complete_removal(removal, self.locate(removal.files, desired))

    def _read_root(self, files: Files) -> ConfigFile:
        return parse_config(files.get(self.config), self.config)

    def _refuse_lost_edits(self, desired: DesiredConfig, places: Callable[[int], str]) -> None:
        """Refuse edits that the product would not read; ``places`` returns its drop-in for a schema.

        Raises:
            Refused: the edit would be lost.
        """
        use = f"gpunode writes to the place that {self.product} reads"
        if desired.mode == "in-place":
            raise self._lost_edit_error(f"{self.config} is not edited in place", f"omit --mode: {use}")
        if desired.drop_in not in {"", places(2), places(3)}:
            raise Refused(
                f"{self.product} does not read {desired.drop_in}",
                why=f"it looks for drop-ins in {posixpath.dirname(places(2))}",
                hint=f"omit --drop-in-config: {use}",
            )

    def _refuse_edit_of_root(self, edited: ConfigEdit, elsewhere: str) -> None:
        if any(edit.path == self.config for edit in edited.edits):
            raise self._lost_edit_error(f"this change requires an edit of {self.config}", elsewhere)

    def _lost_edit_error(self, what: str, hint: str) -> Refused:
        return Refused(what, why=f"{self.product} regenerates it at every start, so the edit would be lost", hint=hint)

    def _not_started_error(self) -> Refused:
        return Refused(
            f"{self.config} does not exist yet",
            why=f"{self.product} creates it at its first start, and its schema is not known until then",
            hint=f"start {self.product} once, then run the command again",
        )


class Microk8s(BundledContainerd):
    """microk8s: the imports of its template are read when containerd starts, and are not edited."""

    __slots__ = ()

    def locate(self, files: Files, desired: DesiredConfig) -> DesiredConfig:
        """Return ``desired`` for the template."""
        del files
        return replace(desired, config=self.config, drop_in="", mode="in-place", version=None)

    def list_read_paths(self, files: Files, desired: DesiredConfig) -> tuple[str, ...]:
        """Return only the template."""
        del files, desired
        return (self.config,)

    def configure(self, files: Files, desired: DesiredConfig) -> ConfigEdit:
        """Return the edit of the template."""
        if self.config not in files:
            raise Refused(
                f"{self.config} does not exist",
                why="microk8s generates containerd's configuration from it, and does not start without it",
                hint="reinstall or refresh the snap: snap refresh microk8s",
            )
        if desired.mode == "drop-in":
            raise Refused(
                "microk8s does not support drop-ins",
                why=f"it only fills in the variables of {self.config}",
                hint="leave --mode out: gpunode edits the template in place",
            )
        edited = containerd.configure(files, self.locate(files, desired))
        return replace(edited, how="in place: microk8s generates the configuration from this template at every start")


class K0s(BundledContainerd):
    """k0s, whether it generates the file or the administrator writes it."""

    __slots__ = ()

    def locate(self, files: Files, desired: DesiredConfig) -> DesiredConfig:
        """Return ``desired`` for the generated file and the drop-in that k0s reads."""
        if not is_managed_by_k0s(files.get(self.config)):
            return replace(desired, config=self.config, version=None)
        # Drop-ins are merged key by key, whether by k0s or by containerd 2.
        version = first_merging_version(self._read_root(files).schema)
        return replace(desired, config=self.config, drop_in=_K0S_DROP_IN, mode="auto", version=version)

    def inspect(self, files: Files, desired: DesiredConfig) -> ObservedConfig:
        """Return the configuration that containerd reads once k0s has noticed the drop-ins."""
        return containerd.inspect(self._with_drop_ins(files), self.locate(files, desired))

    def configure(self, files: Files, desired: DesiredConfig) -> ConfigEdit:
        """Return the drop-in, or the edit of the administrator's own file."""
        located = self.locate(files, desired)
        if not is_managed_by_k0s(files.get(self.config)):
            edited = containerd.configure(files, located)
            return replace(edited, how=f"{edited.how}; {self.config} lacks the mark of k0s, so k0s leaves it alone")
        if self.config not in files:
            raise self._not_started_error()
        self._refuse_lost_edits(desired, lambda _: _K0S_DROP_IN)
        edited = containerd.configure(self._with_drop_ins(files), located)
        self._refuse_edit_of_root(edited, f"put other settings into a file in {_K0S_DROP_IN_FOLDER}")
        # Also replace a drop-in that was left out above.
        edits = tuple(replace(edit, before=files.get(edit.path)) for edit in edited.edits)
        how = "as a drop-in, which k0s detects by itself; it regenerates the rest at every start"
        return replace(edited, edits=edits, how=how)

    def _with_drop_ins(self, files: Files) -> Files:
        """Return the effective files, as if the generated one imported the drop-ins even if k0s merges them itself.

        Our drop-in with another schema is from before an upgrade of k0s, and no longer read.
        """
        if self.config not in files or not is_managed_by_k0s(files[self.config]):
            return files
        root = self._read_root(files)
        if _K0S_DROP_IN in files and parse_config(files[_K0S_DROP_IN], _K0S_DROP_IN).schema != root.schema:
            files = {path: content for path, content in files.items() if path != _K0S_DROP_IN}
        if any(imports_matching(root, _K0S_DROP_IN)):
            return files
        imports = f'version = {root.schema}\nimports = ["{_K0S_DROP_IN_FOLDER}/*.toml"]\n'
        return {**files, self.config: imports.encode()}


def is_managed_by_k0s(data: bytes | None) -> bool:
    """Return whether k0s generates the file: its first line says so (blank before 1.30), or it does not exist."""
    lines = (data or b"").decode("utf-8", "replace").lstrip("\r\n").splitlines()
    return data is None or lines[:1] == [_MANAGED_BY_K0S_LINE]


class Rancher(BundledContainerd):
    """k3s or RKE2."""

    __slots__ = ()

    def _beside_root(self, schema: int, ending: str) -> str:
        return f"{self.config.removesuffix('.toml')}{'' if schema < 3 else '-v3'}.toml.{ending}"

    def template(self, schema: int) -> str:
        """Return the template from which a file of ``schema`` is generated."""
        return self._beside_root(schema, "tmpl")

    def drop_in(self, schema: int) -> str:
        """Return gpunode's drop-in beside a generated file of ``schema``."""
        return self._beside_root(schema, f"d/{_DROP_IN_FILE_NAME}")

    @property
    def settings(self) -> str:
        """Our own part of the product's settings; files with later names win."""
        return f"/etc/rancher/{self.product}/config.yaml.d/99-gpunode.yaml"

    def locate(self, files: Files, desired: DesiredConfig) -> DesiredConfig:
        """Return ``desired`` for the generated file, and for the drop-in that it imports."""
        here = replace(desired, config=self.config, drop_in="", mode="auto", version=None)
        root = self._read_root(files)
        drop_in = self.drop_in(root.schema)
        if not any(imports_matching(root, drop_in)):
            return here
        # Every k3s whose generated file imports a folder ships containerd 2.1 or later.
        return replace(here, drop_in=drop_in, version=first_merging_version(root.schema))

    def configure(self, files: Files, desired: DesiredConfig) -> ConfigEdit:
        """Return the edit of a drop-in, or leave the handler to the product, which registers programs on its PATH."""
        desired = containerd.with_absolute_paths(desired, self.config)
        self._refuse_lost_edits(desired, self.drop_in)
        if self.config not in files:
            if not self._is_auto_detected(desired):
                raise self._not_started_error()
            return ConfigEdit(tuple(self._default_edits(files, desired, None)), self._describe_detection(desired))
        located = self.locate(files, desired)
        if located.drop_in:
            edited = containerd.configure(files, located)
            elsewhere = f"put it into a template beside it, {self.template(3)}, and restart {self.product}"
            self._refuse_edit_of_root(edited, elsewhere)
            how = f"as a drop-in: {self.product} imports the folder and regenerates the rest of {self.config} at start"
            return replace(edited, how=how)
        if desired.mode == "drop-in":
            raise Refused(
                f"this {self.product} reads no drop-in",
                why=f"{self.config} imports no folder; that came with its releases of spring 2026",
                hint=f"omit --mode: gpunode writes to the place that {self.product} reads",
            )
        present = self.inspect(files, located)
        notes = tuple(self._notes(present, located))
        default = tuple(self._default_edits(files, located, present))
        if self._is_registered(present, located):
            return ConfigEdit(default, f"{self.product} registers {desired.handler} by itself", notes)
        self._refuse_lack_of_detection(files, located)
        how = self._describe_detection(located)
        return ConfigEdit(default, how, notes, how)

    def _describe_detection(self, desired: DesiredConfig) -> str:
        finds = f"{self.product} (from v1.22 on) finds {desired.binary} by itself"
        return f"{finds} and registers {desired.handler} when it starts"

    def _is_auto_detected(self, desired: DesiredConfig) -> bool:
        """Return whether the product finds the handler's program by itself, under the same name."""
        folder, _, name = desired.binary.rpartition("/")
        return name == _DETECTED_PROGRAM_BY_HANDLER.get(desired.handler) and folder in _DETECTION_PATH_FOLDERS

    def _refuse_lack_of_detection(self, files: Files, desired: DesiredConfig) -> None:
        template = self.template(self._read_root(files).schema)
        if not self._is_auto_detected(desired):
            raise Refused(
                f"this {self.product} cannot register {desired.handler} with {desired.binary} by itself",
                why=f"it looks for {', '.join(_DETECTED_PROGRAM_BY_HANDLER.values())} on its PATH, and reads drop-ins "
                "only since spring 2026",
                hint=f"omit the runtime's name and path, upgrade {self.product}, or add the runtime to a template, "
                f"{template}",
            )
        if template in files and not _DETECTED_RUNTIMES_TEMPLATE.search(files[template]):
            raise Refused(
                f"{template} prevents {self.product} from registering {desired.handler}",
                why=f"the template includes none of the runtimes that {self.product} finds by itself",
                hint=f'begin the template with {{{{ template "base" . }}}}, or delete it, then restart {self.product}',
            )

    def _is_registered(self, present: ObservedConfig, desired: DesiredConfig) -> bool:
        """Return whether the handler is as desired, or as the product found it elsewhere (the GPU Operator's)."""
        binary = present.handlers.get(desired.handler, "")
        is_its_program = posixpath.basename(binary) == _DETECTED_PROGRAM_BY_HANDLER.get(desired.handler)
        return binary == desired.binary or (self._is_auto_detected(desired) and is_its_program)

    def _default_edits(self, files: Files, desired: DesiredConfig, present: ObservedConfig | None) -> Iterator[Edit]:
        """Yield the edit of the product's default-runtime setting, if that is desired and not yet set."""
        data, after = files.get(self.settings), _default_runtime_setting(desired)
        if desired.default and (present is None or present.default != desired.handler) and data != after:
            yield Edit(self.settings, data, after)

    def _notes(self, present: ObservedConfig, desired: DesiredConfig) -> Iterator[str]:
        if desired.default and present.default != desired.handler:
            yield f"{self.product} reads default-runtime since late 2023; older releases skip it with a warning"
        if desired.enable_cdi and not present.cdi and (present.schema or 2) < 3:
            yield f"CDI stays off: this {self.product} reads no drop-ins; its releases with containerd 2 enable CDI"
        present_binary = present.handlers.get(desired.handler)
        if present_binary and present_binary != desired.binary and self._is_registered(present, desired):
            yield f"{self.product} has registered {desired.handler} with {present_binary}, which it found first"

    def complete_removal(self, removal: Removal, desired: DesiredConfig) -> Removal:
        """Return the removal with the product's own setting undone; what the product finds by itself stays."""
        removal = containerd.complete_removal(removal, self.locate(removal.files, desired))
        for path in sorted(removal.files_after):
            if path in {self.template(2), self.template(3)} and b"gpunode: begin" in removal.files_after[path]:
                removal = removal.with_notes(
                    f"{path} keeps the lines between gpunode's two marks: delete them if they were for this"
                )
        if removal.files_after.get(self.settings) == _default_runtime_setting(desired):
            former = removal.former.get(self.settings)
            removal = removal.with_file(self.settings, None if former == removal.files[self.settings] else former)
        if desired.handler in _DETECTED_PROGRAM_BY_HANDLER:
            removal = removal.with_notes(
                f"{self.product} registers {desired.handler} by itself if nvidia-container-toolkit is installed"
            )
        return removal


def _default_runtime_setting(desired: DesiredConfig) -> bytes:
    name = desired.handler if re.fullmatch(r"nvidia[\w-]*", desired.handler) else json.dumps(desired.handler)
    return f"# made by gpunode\ndefault-runtime: {name}\n".encode()


def make_bundled_runtime(product: str, usual: Runtime, kubelet: Kubelet, unit: str, facts: Facts) -> Runtime:
    """Return the row of the containerd that ``product`` ships.

    Args:
        product: its id.
        usual: the row of a containerd that has its own packages.
        kubelet: the kubelet that uses it.
        unit: the unit that starts it, unless the kubelet's own does.
        facts: the node's facts.
    """
    if product == "microk8s":
        # The kubelet is run by another daemon of the snap; its containerd can be restarted separately.
        return Microk8s(product, _MICROK8S_TEMPLATE).make_row(usual, kubelet, unit)
    unit = kubelet.unit or unit
    if product == "k0s":
        state = value_or(facts.file(_K0S_CONFIG_FILE), None)
        is_managed = is_managed_by_k0s(state.content if state else None)
        k0s = K0s(product, _K0S_CONFIG_FILE, (f"{_K0S_DROP_IN_FOLDER}/*.toml",), frozenset({_K0S_DROP_IN}))
        generated = frozenset({k0s.config} if is_managed else ())
        return replace(k0s.make_row(usual, kubelet, unit), generated_files=generated, watches_files=is_managed)
    folder = f"{kubelet.data or f'/var/lib/rancher/{product}'}/agent/etc/containerd"
    rancher = Rancher(product, f"{folder}/config.toml")
    own = (rancher.settings, *(at(schema) for schema in (2, 3) for at in (rancher.template, rancher.drop_in)))
    rancher = replace(rancher, read_paths=tuple(sorted(own)), beside=frozenset(own))
    return replace(rancher.make_row(usual, kubelet, unit), generated_files=frozenset({rancher.config}))
