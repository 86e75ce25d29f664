"""k3s and RKE2: they generate containerd's configuration at every start, from a template and their PATH.

gpunode writes a drop-in where the generated file imports a folder of them. Elsewhere the product registers NVIDIA's
runtime by itself, and gpunode restarts it where needed. The default runtime is a setting of the product's own.
Templates belong to the user: gpunode reads them, and takes back what an earlier gpunode wrote into one.

Source: docs.k3s.io and docs.rke2.io, "Configuring containerd" and "Alternative Container Runtime Support"; k3s PR 3890
(runtimes are found at the start, August 2021, v1.22), PR 13680 (drop-in folders, February 2026), PR 8751
(--default-runtime, November 2023), PR 11626 (config-v3.toml.tmpl); pkg/agent/containerd/runtimes.go (what is found);
pkg/configfilearg (config.yaml.d; a setting that a version does not know is skipped with a warning).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from gpunode.errors import Refused
from gpunode.runtimes import containerd, containerd_files
from gpunode.runtimes.containerd_files import ConfigFile, first_merging_version, imports_matching, parse_config
from gpunode.runtimes.model import ConfigEdit, DesiredConfig, Edit, Files, ObservedConfig, Removal

_DROP_IN_FILE_NAME: Final = "99-nvidia.toml"
# What the product registers by itself, by the name of the program that it looks for.
_DETECTED_PROGRAM_BY_HANDLER: Final = {
    "nvidia": "nvidia-container-runtime",
    "nvidia-cdi": "nvidia-container-runtime.cdi",
    "nvidia-experimental": "nvidia-container-runtime-experimental",
}
_DETECTION_PATH_FOLDERS: Final = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
# A template that includes the runtimes which the product finds: its base template does.
_RENDERS_DETECTED_RUNTIMES: Final = re.compile(rb"""\{\{-?\s*template\s+["`]base["`]|\.ExtraRuntimes\b""")


@dataclass(frozen=True, slots=True)
class Rancher:
    """The places of one product.

    Attributes:
        product: ``k3s`` or ``rke2``.
        data: its data folder.
    """

    product: str
    data: str

    @property
    def folder(self) -> str:
        """The folder of containerd's configuration."""
        return f"{self.data}/agent/etc/containerd"

    @property
    def config(self) -> str:
        """The generated file."""
        return f"{self.folder}/config.toml"

    @property
    def settings(self) -> str:
        """Our own part of the product's settings; a later name wins over an earlier one."""
        return f"/etc/rancher/{self.product}/config.yaml.d/99-gpunode.yaml"

    def template(self, schema: int) -> str:
        """Return the template from which a file of ``schema`` is generated."""
        return f"{self.folder}/config{_schema_suffix(schema)}.toml.tmpl"

    def drop_in(self, schema: int) -> str:
        """Return gpunode's drop-in beside a generated file of ``schema``."""
        return f"{self.folder}/config{_schema_suffix(schema)}.toml.d/{_DROP_IN_FILE_NAME}"

    @property
    def beside(self) -> frozenset[str]:
        """Yield the files to write beside the generated one."""
        return frozenset({self.settings, *(at(schema) for schema in (2, 3) for at in (self.template, self.drop_in))})

    def reads(self, files: Files, desired: DesiredConfig) -> tuple[str, ...]:
        """Return every file that matters, as far as ``files`` tell."""
        return tuple(dict.fromkeys((*containerd_files.reads(files, self.locate(files, desired)), *sorted(self.beside))))

    def inspect(self, files: Files, desired: DesiredConfig) -> ObservedConfig:
        """Return what containerd has read since the last start."""
        return containerd.inspect(files, self.locate(files, desired))

    def configure(self, files: Files, desired: DesiredConfig) -> ConfigEdit:
        """Return the edits that register the handler from the next start on; none if it is or will be registered.

        Raises:
            Refused: a file cannot be read, or the request is impossible there.
        """
        if desired.mode == "in-place":
            raise Refused(
                f"{self.config} is not edited in place",
                why=f"{self.product} regenerates it at every start, so the edit would be lost",
                hint=f"omit --mode: gpunode writes to the place that {self.product} reads",
            )
        desired = containerd.with_absolute_paths(desired, self.config)
        if desired.drop_in not in {"", self.drop_in(2), self.drop_in(3)}:
            raise Refused(
                f"{self.product} does not read {desired.drop_in}",
                why=f"its containerd has its configuration in {self.folder}",
                hint=f"omit --drop-in-config: gpunode writes to the place that {self.product} reads",
            )
        if self.config not in files:
            return self._configure_before_start(files, desired)
        located = self.locate(files, desired)
        if located.drop_in:
            return self._refuse_generated_edit(containerd.configure(files, located))
        if desired.mode == "drop-in":
            raise Refused(
                f"this {self.product} reads no drop-in",
                why=f"{self.config} imports no folder; that came with its releases of spring 2026",
                hint=f"omit --mode: gpunode writes to the place that {self.product} reads",
            )
        return self._configure_by_detection(files, located)

    def _read_generated(self, files: Files) -> ConfigFile:
        return parse_config(files.get(self.config), self.config)

    def locate(self, files: Files, desired: DesiredConfig) -> DesiredConfig:
        """Return ``desired`` for the generated file, and for the drop-in that it imports."""
        here = replace(desired, config=self.config, drop_in="", mode="auto", version=None)
        root = self._read_generated(files)
        drop_in = self.drop_in(root.schema)
        if not any(imports_matching(root, drop_in)):
            return here
        # Every k3s whose generated file imports a folder brings containerd 2.1 or later.
        return replace(here, drop_in=drop_in, version=first_merging_version(root.schema))

    def _refuse_generated_edit(self, edited: ConfigEdit) -> ConfigEdit:
        """Return ``edited``, unless it edits the generated file."""
        if any(edit.path == self.config for edit in edited.edits):
            raise Refused(
                f"this change requires an edit of {self.config}",
                why=f"{self.product} regenerates it at every start, so the edit would be lost",
                hint=f"put it into a template beside it, {self.template(3)}, and restart {self.product}",
            )
        how = f"as a drop-in: {self.product} imports the folder and regenerates the rest of {self.config} at start"
        return replace(edited, how=how)

    def _configure_before_start(self, files: Files, desired: DesiredConfig) -> ConfigEdit:
        if not self._is_auto_detected(desired):
            raise Refused(
                f"{self.config} does not exist yet",
                why=f"{self.product} creates it at its first start, and its schema is not known until then",
                hint=f"start {self.product} once, then run the command again",
            )
        return ConfigEdit(tuple(self._default_edits(files, desired, None)), self._describe_detection(desired))

    def _describe_detection(self, desired: DesiredConfig) -> str:
        return (
            f"{self.product} (from v1.22 on) finds {desired.binary} by itself and registers {desired.handler} "
            "when it starts"
        )

    def _is_auto_detected(self, desired: DesiredConfig) -> bool:
        """Return whether the product finds the handler's program by itself, under the same name."""
        program = _DETECTED_PROGRAM_BY_HANDLER.get(desired.handler)
        folder, _, name = desired.binary.rpartition("/")
        return name == program and folder in _DETECTION_PATH_FOLDERS

    def _configure_by_detection(self, files: Files, desired: DesiredConfig) -> ConfigEdit:
        """Leave the handler to the product, which registers what it finds on its PATH.

        Raises:
            Refused: it does not look for this handler, or a template does not include what it finds.
        """
        present = self.inspect(files, desired)
        notes = tuple(self._notes(present, desired))
        default = tuple(self._default_edits(files, desired, present))
        if self._is_registered(present, desired):
            return ConfigEdit(default, f"{self.product} registers {desired.handler} by itself", notes)
        if not self._is_auto_detected(desired):
            raise Refused(
                f"this {self.product} cannot register {desired.handler} with {desired.binary} by itself",
                why=f"it looks for {', '.join(_DETECTED_PROGRAM_BY_HANDLER.values())} on its PATH, and reads drop-ins "
                "only since spring 2026",
                hint=f"omit the runtime's name and path, upgrade {self.product}, or add the runtime to a template, "
                f"{self.template(self._read_generated(files).schema)}",
            )
        template = self.template(self._read_generated(files).schema)
        if template in files and not _RENDERS_DETECTED_RUNTIMES.search(files[template]):
            raise Refused(
                f"{template} prevents {self.product} from registering {desired.handler}",
                why=f"the template includes none of the runtimes that {self.product} finds by itself",
                hint=f'begin the template with {{{{ template "base" . }}}}, or delete it, then restart {self.product}',
            )
        how = self._describe_detection(desired)
        return ConfigEdit(default, how, notes, how)

    def _is_registered(self, present: ObservedConfig, desired: DesiredConfig) -> bool:
        """Return whether the handler is as desired, or as the product found it elsewhere (the GPU Operator's)."""
        binary = present.handlers.get(desired.handler, "")
        return binary == desired.binary or (
            self._is_auto_detected(desired)
            and posixpath.basename(binary) == _DETECTED_PROGRAM_BY_HANDLER[desired.handler]
        )

    def _default_edits(self, files: Files, desired: DesiredConfig, present: ObservedConfig | None) -> Iterator[Edit]:
        """Yield the product's own setting of the default runtime, where that is desired and not so already."""
        data = files.get(self.settings)
        after = _default_runtime_setting(desired)
        if desired.default and (present is None or present.default != desired.handler) and data != after:
            yield Edit(self.settings, data, after)

    def _notes(self, present: ObservedConfig, desired: DesiredConfig) -> Iterator[str]:
        if desired.default and present.default != desired.handler:
            yield f"{self.product} reads default-runtime since late 2023; older releases skip it with a warning"
        if desired.cdi and not present.cdi and (present.schema or 2) < 3:
            yield f"CDI stays off: this {self.product} reads no drop-ins; its releases with containerd 2 enable CDI"
        found = present.handlers.get(desired.handler)
        if found and found != desired.binary and self._is_registered(present, desired):
            yield f"{self.product} has registered {desired.handler} with {found}, which it found first"

    def complete_removal(self, removal: Removal, desired: DesiredConfig) -> Removal:
        """Return the removal with the product's own setting taken back; what the product finds by itself stays."""
        for path in sorted(removal.after):
            if path in {self.template(2), self.template(3)} and b"gpunode: begin" in removal.after[path]:
                removal = removal.with_notes(
                    f"{path} keeps the lines between gpunode's two marks: delete them if they were for this"
                )
        if removal.after.get(self.settings) == _default_runtime_setting(desired):
            is_recorded = removal.former.get(self.settings) != removal.files[self.settings]
            former = removal.former.get(self.settings) if is_recorded else None
            removal = removal.with_file(self.settings, former)
        if desired.handler in _DETECTED_PROGRAM_BY_HANDLER:
            removal = removal.with_notes(
                f"{self.product} registers {desired.handler} by itself if nvidia-container-toolkit is installed"
            )
        return removal


def _default_runtime_setting(desired: DesiredConfig) -> bytes:
    return f"# made by gpunode\ndefault-runtime: {desired.handler}\n".encode()


def _schema_suffix(schema: int) -> str:
    return "" if schema < 3 else "-v3"
