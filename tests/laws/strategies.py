"""Random changes of every kind; settled ones have only known states."""

from __future__ import annotations

from hypothesis import strategies as st

from gpunode.change import (
    Change,
    CommandChange,
    Deferred,
    FileChange,
    FileState,
    KnownAfter,
    MigChange,
    MigInstance,
    MigLayout,
    ModuleChange,
    PackageChange,
    PackageState,
    ServiceChange,
    ServiceState,
    SigningKey,
    Trigger,
)
from gpunode.package_id import PackageId

# Paths may hold bytes that are not UTF-8, which Python carries as lone surrogates.
words = st.text(st.characters(codec=None, exclude_characters="\0"), min_size=1, max_size=12)
names = st.text(st.characters(codec=None, exclude_characters="\0:="), min_size=1, max_size=12)
package_ids = st.builds(PackageId, names, st.just("") | names, st.just("") | words)
kinds = st.sampled_from(["index-refresh", "daemon-reload", "initramfs", "cdi", "reload", "restart"])
triggers = st.builds(Trigger, kinds, st.sampled_from(["", "docker.service", "containerd.service"]))
modes = st.integers(0, 0o7777)
file_states = st.builds(FileState, st.binary(max_size=200), modes, st.integers(0, 70000), st.integers(0, 70000))
unsettled = st.one_of(
    st.builds(Deferred, words, words), st.builds(SigningKey, words, st.frozensets(words, max_size=3), modes)
)
trigger_sets = st.frozensets(triggers, max_size=4)
package_states = st.builds(PackageState, words, st.booleans(), st.booleans(), st.booleans())
service_states = st.builds(ServiceState, st.booleans(), st.booleans())

settled_files = st.builds(FileChange, words, st.none() | file_states, st.none() | file_states, trigger_sets)
settled_packages = st.builds(PackageChange, package_ids, st.none() | package_states, st.none() | package_states)
services = st.builds(ServiceChange, words, service_states, service_states)
modules = st.builds(ModuleChange, words, st.booleans(), st.booleans())
argvs = st.lists(words, min_size=1, max_size=3).map(tuple)
commands = st.builds(CommandChange, argvs, words, st.none() | argvs)

instances = st.builds(MigInstance, words, st.integers(0, 7), st.integers(1, 8), argvs)
layouts = st.builds(MigLayout, st.booleans(), st.lists(instances, max_size=3).map(tuple))
divisions = st.builds(MigChange, words, layouts, layouts, st.frozensets(triggers, max_size=2))
settled_changes: st.SearchStrategy[Change] = st.one_of(settled_files, settled_packages, services, modules, divisions)
changes: st.SearchStrategy[Change] = st.one_of(
    settled_changes,
    commands,
    st.builds(FileChange, words, st.none() | file_states, unsettled, trigger_sets),
    st.builds(PackageChange, package_ids, st.none() | package_states, st.builds(KnownAfter, words, words)),
)
