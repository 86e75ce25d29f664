"""Replaces everything that identifies the machine, its parts, its users, its network and its neighbours.

Equal values stay equal and keep their form, so that the diagnosis stays the same. Masks are numbers in the order of
first appearance: they reveal nothing, even to somebody who tries all MAC addresses of a vendor, and the same evidence
gives the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final, Literal, TypeAlias

from gpunode.facts.evidence import Evidence
from gpunode.redaction.evidence import recoded, rewritten
from gpunode.redaction.patterns import compiled, replaced

Kind: TypeAlias = Literal["number", "user", "serial", "host", "server", "address", "public address"]

_FLAGS: Final = re.IGNORECASE | re.MULTILINE
_PAIR: Final = "[0-9a-f]{2}"
# Values of which only the digits are masked. The last group of each alternative is the value.
_NUMBERS: Final = (
    # UUIDs, in the paths of cgroups with underscores
    r"(?:(?<=pod)|(?<![0-9a-f]))([0-9a-f]{8}([-_])[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{12})(?![0-9a-f])",
    # nodes of clouds
    r"(?:\bproviderID[\"']?:[ \t]*[\"']?\w{1,20}|\b(?:aws|gce|azure|vsphere|openstack))://([^\s\"',\\]{1,200})",
    # MAC addresses: with colons, on the kernel's command line after an interface's name; with dashes, where no date is
    rf"(?:\b(?:ifname|ip)=\S{{0,200}}?:|(?<![\w:.-]))((?:{_PAIR}:){{5}}{_PAIR})(?![\w:])",
    rf"(?:\bBOOTIF=(?:01-)?|(?<![\w-])(?=[\d-]{{0,17}}[a-f]|00-))((?:{_PAIR}-){{5}}{_PAIR})(?![\w-])",
    # numbers in one word or in groups: MAC addresses, InfiniBand's GUIDs, GPUs, disks, ids of systemd and Amazon
    (
        r"(?:\b(?:(?:(?:mac|hwaddr|ether)(?:[ _-]?addr(?:ess)?)?|(?:\w{1,20}_)?guid|mlx\d_\w{1,20}|gpu pdi|wwn|eui|naa"
        r"|i|machine[ _-]?id)[ \t:=.\"'\\-]{1,60}(?:0x)?|(?:enx|wlx|wwx))|\bfe80:(?::|(?:0{1,4}:){3}))"
        r"([0-9a-f]{12,32}|(?:[0-9a-f]{1,4}:){3}[0-9a-f]{1,4})\b(?!:[0-9a-f])"
    ),
    rf"\b(?:link/infiniband|Device Serial Number)[ \t]+((?:{_PAIR}[:-]){{7,19}}{_PAIR})\b",
    r"\[V\w\] Vendor specific:[ \t]*([\w.-]{6,64})",
    # partitions
    r"\b(?:PART)?UUID=[\"']?([0-9a-f]{4}-[0-9a-f]{4}\b|[0-9a-f]{8}(?=-[0-9a-f]{2}\b))",
    # docker before version 24
    r"^[ \t]*ID:[ \t]*((?:[A-Z2-7]{4}:){11}[A-Z2-7]{4})\b",
)
_SERIAL: Final = (
    r"(?:\b(?:Serial(?:[ _-]?(?:Number|No\.?))?|S/N|Asset[ _]Tag)[\"']?[ \t]{0,60}[:=][ \t]*[\"']?"
    r"|\bchassisSN\b[\"']?[ \t:=]{1,9}[\"']?)(?!(?:N/A|None|null|Unknown|Not Specified|serial-\d)\b)([\w.+/-]{2,64})"
)
# The owner of a home, a session or a sudo command.
_USER: Final = (
    r"(?-i:(?:(?<![\w./-])/home/|\bsudo(?:\[\d{1,10}\])?:[ \t]+|\b(?:for|of) user |\bUSER=|\b(?:ses|log)name[= ]"
    r"|\bsession opened for user )([a-z_][\w.-]{0,31})(?=[/\s:;,(\"']|\Z))"
)
_HOST_NAME: Final = r"([\w.-]{1,253})"
_HOSTS: Final = (
    # before a message of journalctl and syslog
    (
        r"(?-i:^(?:\d{4}-\d\d-\d\dT[\d:.,+Z-]{8,30}|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d{1,6})?) )"
        rf"{_HOST_NAME}(?= [^\s:\[]{{1,64}}(?:\[\d{{1,10}}\])?: )"
    ),
    (
        r"(?:\bHostname set to <|^[ \t]*(?:Host ?name|Static hostname|Node Name):[ \t]*"
        # docker info; the licence server of a virtual GPU
        r"|(?-i:^ Name: )|^[ \t]*(?:Backup)?ServerAddress=(?=[\d.]*[a-z])"
        # Kubernetes: of a pod, in describe, in the kubelet's log, and in the node's own object
        r"|(?:\bkubernetes\.io/hostname|\bnode-?name|--hostname-override)[\"']?[:= \0][ \t]*[\"']?(?=[\w-])"
        r"|\bserver[\"']?[:= ][ \t]*[\"']?https?://(?=[\w-]{1,63}(?:[:/\"'\s]|\Z))(?!localhost\b|kubernetes\b|\d+[:/\s])"
        r"|^Node:[ \t]+|\bnode=[\"']|\bsystem:node:(?=[a-z\d])"
        r"|\"type\":[ ]?\"(?:Hostname|InternalDNS|ExternalDNS)\",[ ]?\"address\":[ ]?\""
        r"|\b(?:csi)?nodes?(?:\.storage\.k8s\.io)? (?P<quote>\\{0,7}\")(?=[\w.-]{1,253}(?P=quote) )"
        # uname -a; a shell prompt
        r"|^Linux (?=[\w.-]{1,253} \d+\.\d+\S{0,80} #\d)"
        r"|^\[?[\w.-]{1,64}@(?=[\w.-]{1,253}(?::[^\s:]{0,200}|[ ][^\s\]]{1,200}\])[#$](?:\s|\Z)))"
        rf"{_HOST_NAME}"
        # kubectl get nodes; Amazon's
        rf"|^{_HOST_NAME}(?=[ ]+(?:Not)?Ready[, ])|\b(ip(?:-\d{{1,3}}){{4}}(?:\.[a-z][\w-]*)*)\b"
    ),
)
# Outside of URLs, files and resources (`main.go:12`, `amd.com/gpu`) look like servers. There, the last label must be
# known, or the context must name a registry, an image or a lookup. A name without a domain is left to _HOSTS.
_TOP: Final = (
    r"(?:com|net|org|io|dev|cloud|internal|intranet|local|localdomain|lan|corp|home|private|ai|co|edu|gov|mil|int|eu|de"
    r"|fr|uk|us|ch|at|nl|be|it|es|se|no|fi|dk|jp|cn|in|au|ca|br|kr|ru|cz)"
)
_DOTTED: Final = r"(?:[a-z\d-]{1,63}\.){1,8}"
_DOMAIN: Final = rf"({_DOTTED}[a-z][a-z\d-]{{1,62}})"
_SERVERS: Final = (
    rf"(?<=://)(?:[^\s/@\"'<>]{{1,256}}@)?{_DOMAIN}",
    rf"(?:\b(?:mirrors|configs)\.\\?[\"']|\b(?:certs|hosts)\.d/|\blookup[ \t]+){_DOMAIN}",
    (
        r"(?:image(?:name|_name|id)?\\{0,7}[\"']?[ \t]{0,9}[:=]?[ \t]{0,9}\\{0,7}[\"']?"
        rf"|\bpull(?:ing)?[ \t]+(?:image[ \t]+)?\\{{0,7}}[\"']?){_DOMAIN}(?=(?::\d{{1,5}})?/[a-z\d])"
    ),
    rf"(?<![\w./@:-])({_DOTTED}{_TOP})(?=:\d{{2,5}}(?![\w.]))",
    rf"^[ \t]{{1,8}}[\"']?({_DOTTED}{_TOP})[\"']?:[ \t]*$",
)
# The names in the certificate of k3s' server.
_CERTIFIED: Final = (
    r"\btls-san[\"']?[ \t]{0,9}[:=]?([ \t]+[^\n]{1,1000}|=\S{1,1000}|(?:[ \t]*\n[ \t]*-[ \t]+[^\n]{1,300}){1,50})"
)
_CERTIFIED_NAME: Final = r"(?<![\w.:-])([a-z][a-z\d-]{0,62}(?:\.[a-z\d-]{1,63}){0,8})(?![\w.:-])"
# Public servers, which a diagnosis may name.
_PUBLIC: Final = (
    r"(?:.*\.)?(?:(?:nvidia|mellanox|gitlab|docker|googleapis|google|microsoft|amazonaws|ubuntu|canonical|redhat|oracle|suse"
    r"|anaconda|githubusercontent|stackoverflow)\.com|(?:nvcr|ghcr|docker|quay|gcr|k8s|kubernetes|snapcraft|redhat|k3s|rancher"
    r"|containerd|crictl|cri-o|tigera)\.io|(?:debian|fedoraproject|centos|rockylinux|almalinux|opensuse|archlinux|kernel"
    r"|freedesktop|gnu|python|pypi|pythonhosted|pytorch|anaconda|opencontainers|projectcalico)\.org|github\.(?:com|io)"
    r"|debian\.net|azureedge\.net|launchpad(?:content)?\.net|pkg\.dev|public\.ecr\.aws|suse\.de|huggingface\.co|hf\.co"
    r"|svc|cluster\.local|example\.(?:com|org|net))"
)
_IPV4: Final = r"(?<![\w.+~-])(?<!\d:)((?:\d{1,3}\.){3}\d{1,3})(?![\w+~-]|\.\d)"
# Four numbers may be a version: a public address counts only after one of these words.
_PUBLIC_IPV4: Final = (
    r"(?:://|@|\b(?:inet|addr|address|server|host|from|to|ip|via|dial tcp|nameserver)[\"':= \t]{1,4})"
    r"((?:\d{1,3}\.){3}\d{1,3})(?![\w+~-]|\.\d)"
)
_IPV6: Final = r"(?<![\w:.])(?=[0-9a-f:]{0,40}\d)((?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{0,4})(?![\w:.])"
# Host names that also mean something else. They are masked only where a host is named.
_COMMON: Final = r"[a-z]*|.{1,5}|localhost.*|.*(?:nvidia|docker|containerd|kernel|systemd).*"
# Default names that tools give: they identify nobody. A profile's name is its owner's.
_DEFAULT_NAMES: Final = (
    r"minikube(?:-m\d{1,3})?|kind(?:-(?:control-plane|worker)\d{0,3})?|k3d(?:-k3s-default(?:-(?:agent|server)-\d{1,3})?)?"
    r"|docker-desktop(?:-(?:control-plane|worker)\d{0,3})?|(?:lima-)?rancher-desktop|colima|orbstack|microk8s-vm"
)
_NO_HOST: Final = r"localhost.*|kubernetes|\d*"
_NO_USER: Final = r"user-\d+|root|nobody|ubuntu|debian|core|runner"
# Where a known name can only be a node's, even a plain word: static pods, leases, certificates and requests carry it.
_OF_NODE: Final = (
    r"(?:(?<![a-zA-Z\d-])(?:kube-(?:apiserver|controller-manager|proxy|scheduler|vip)|cloud-controller-manager|etcd)-"
    r"|\b(?:nodes?|leases|csinodes)(?:\.[a-z\d.]{1,40})?(?:/|[ ]\\{0,7}\")|\bon node: |\b(?:control-plane|for) node "
    r"|\bobject=\\{0,7}\"/?|\bCN[ ]?=[ ]?)(WORDS(?:\.[a-z][a-z\d-]*)*)(?![a-z\d-])"
    r"|(?:://|@|\blookup[ ]|^127\.0\.1\.1[ \t]+|\bhostname[\"']?[:=][ ]?[\"']?)(WORDS)(?![a-z\d-])(?!\.\w)"
)
_ANYWHERE: Final = r"(?<![\w-])(WORDSTAIL)(?![\w-])"
Rule: TypeAlias = tuple[Kind, str]
# In this order. What they find is masked elsewhere, too.
_RULES: Final[tuple[Rule, ...]] = (
    *(("number", number) for number in _NUMBERS),
    ("user", _USER),
    ("serial", _SERIAL),
    *(("host", host) for host in _HOSTS),
    ("address", _IPV4),
    ("public address", _PUBLIC_IPV4),
    ("address", _IPV6),
)
# Reserved for benchmarks and documentation (RFC 2544, RFC 3849), and for carriers (RFC 6598).
_MASK_IPV4: Final = ip_network("198.18.0.0/15")
_MASK_IPV6: Final = ip_network("2001:db8::/32")
_CARRIERS: Final = ip_network("100.64.0.0/10")
_NODE_NAME: Final = "node-name"


def anonymized(evidence: Evidence) -> Evidence:
    """``evidence`` without anything that identifies the machine.

    A host name that is short or an ordinary word is masked only where a host is named.
    """
    masks = _Masks(evidence)

    def contents(data: bytes) -> bytes:
        return recoded(data, masks.text)

    masked = {
        key: rewritten(capture, contents, masks.text, paths=masks.text) for key, capture in sorted(evidence.items())
    }
    if name := evidence.get(_NODE_NAME):
        data = f"{masks.mask('host', name.text.strip())}\n".encode() if name.data else b""
        masked[_NODE_NAME] = replace(name, data=data)
    return masked


def _learned(evidence: Evidence) -> Iterator[Rule]:
    """Rules for the names and serial numbers in ``evidence``, wherever they are repeated."""
    texts = [capture.text for capture in evidence.values()]

    def found(*patterns: str) -> set[str]:
        matches = (match for one in patterns for text in texts for match in compiled(one, _FLAGS).finditer(text))
        return {match[match.lastindex or 0].lower() for match in matches}

    certified = {name for names in found(_CERTIFIED) for name in compiled(_CERTIFIED_NAME).findall(names)}
    servers = found(*_SERVERS) | {name for name in certified if "." in name}
    hosts = {name.partition(".")[0] for name in found(*_HOSTS)} | (certified - servers)
    if _NODE_NAME in evidence:
        hosts.add(evidence[_NODE_NAME].text.strip().partition(".")[0].lower())
    yield from _rule("host", _OF_NODE, hosts, other_than=_NO_HOST)
    yield from _rule("serial", _ANYWHERE, found(_SERIAL), other_than=r"\D*|.{0,7}")
    yield from _rule("server", _ANYWHERE, servers, other_than=_PUBLIC)
    unmistakable = _ANYWHERE.replace("TAIL", r"(?:\.[a-z][\w-]*)*")
    yield from _rule("host", unmistakable, hosts, other_than=rf"{_COMMON}|{_DEFAULT_NAMES}")


def _rule(kind: Kind, pattern: str, words: Iterable[str], *, other_than: str) -> Iterator[Rule]:
    """The rule that finds any of ``words``, if there are any, but for ``other_than``."""
    kept = sorted((word for word in words if not compiled(other_than).fullmatch(word)), key=len, reverse=True)
    if kept:
        yield kind, pattern.replace("WORDS", f"(?:{'|'.join(map(re.escape, kept))})").replace("TAIL", "")


class _Masks:
    """The masks given so far, numbered separately for each kind."""

    def __init__(self, evidence: Evidence) -> None:
        self._rules = (*_RULES, *_learned(evidence))
        self._given: dict[str, dict[str, int]] = {}

    def text(self, text: str) -> str:
        """``text`` with everything that identifies masked."""
        for kind, pattern in self._rules:
            text = replaced(pattern, text, partial(self.mask, kind), _FLAGS)
        return text

    def mask(self, kind: Kind, value: str) -> str:
        """The mask for ``value``; the value itself if it identifies nobody."""
        match kind:
            case "number":
                digits = "".join(filter(str.isalnum, value))
                masked = iter(f"{self._number(kind, digits):x}".rjust(len(digits), "0"))
                return "".join(next(masked) if char.isalnum() else char for char in value)
            case "user":
                is_kept = compiled(_NO_USER, 0).fullmatch(value)
                return value if is_kept else f"user-{self._number(kind, value)}"
            case "serial":
                return f"serial-{self._number(kind, value)}"
            case "host":
                is_kept = compiled(rf"host-\d+|{_DEFAULT_NAMES}").fullmatch(value)
                return value if is_kept else f"host-{self._number(kind, value.partition('.')[0])}"
            case "server":
                return f"server-{self._number(kind, value)}.example.com"
            case "address" | "public address":
                return self._address(value, is_public=kind == "public address")

    def _address(self, value: str, *, is_public: bool) -> str:
        try:
            address = ip_address(value)
        except ValueError:
            return value
        if address.is_loopback or address.is_link_local or address in _MASK_IPV6 or address in _MASK_IPV4:
            return value
        if isinstance(address, IPv6Address):
            return str(_MASK_IPV6[self._number("ipv6", str(address))])
        is_local = address.is_private or address in _CARRIERS
        if address.packed[0] in {0, 255} or not (is_local or is_public):
            return value
        return str(_MASK_IPV4[self._number("ipv4", value)])

    def _number(self, kind: str, value: str) -> int:
        given = self._given.setdefault(kind, {})
        return given.setdefault(value.lower(), len(given) + 1)
