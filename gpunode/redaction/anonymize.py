"""Replace everything that identifies the machine, its parts, users, network and neighbours.

Equal values stay equal and keep their form, so that the diagnosis does not change. Masks are numbered in the order of
first appearance: they reveal nothing, even to someone who tries all MAC addresses of a vendor, and the same evidence
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
from gpunode.redaction.evidence import mask_bytes, rewrite_capture
from gpunode.redaction.patterns import compile_cached, mask_matches

IdentityKind: TypeAlias = Literal[
    "number", "user", "serial", "signer", "email", "host", "server", "address", "public address"
]

_REGEX_FLAGS: Final = re.IGNORECASE | re.MULTILINE
_HEX_PAIR: Final = "[0-9a-f]{2}"
# Values of which only the digits are masked. The last group of each alternative is the value.
_ID_NUMBER_PATTERNS: Final = (
    # UUIDs; in the paths of cgroups with underscores
    r"(?:(?<=pod)|(?<![0-9a-f]))([0-9a-f]{8}([-_])[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{12})(?![0-9a-f])",
    # cloud nodes
    r"(?:\bproviderID[\"']?:[ \t]*[\"']?\w{1,20}|\b(?:aws|gce|azure|vsphere|openstack))://([^\s\"',\\]{1,200})",
    # MAC addresses: with colons, also after an interface's name on the kernel's command line; with dashes, but no dates
    rf"(?:\b(?:ifname|ip)=\S{{0,200}}?:|(?<![\w:.-]))((?:{_HEX_PAIR}:){{5}}{_HEX_PAIR})(?![\w:])",
    rf"(?:\bBOOTIF=(?:01-)?|(?<![\w-])(?=[\d-]{{0,17}}[a-f]|00-))((?:{_HEX_PAIR}-){{5}}{_HEX_PAIR})(?![\w-])",
    # numbers as one word or in groups: MAC addresses, InfiniBand GUIDs, GPUs, disks, ids of systemd and Amazon
    (
        r"(?:\b(?:(?:(?:mac|hwaddr|ether)(?:[ _-]?addr(?:ess)?)?|(?:\w{1,20}_)?guid|mlx\d_\w{1,20}|gpu pdi|wwn|eui|naa"
        r"|i|machine[ _-]?id)[ \t:=.\"'\\-]{1,60}(?:0x)?|(?:enx|wlx|wwx))|\bfe80:(?::|(?:0{1,4}:){3}))"
        r"([0-9a-f]{12,32}|(?:[0-9a-f]{1,4}:){3}[0-9a-f]{1,4})\b(?!:[0-9a-f])"
    ),
    rf"\b(?:link/infiniband|Device Serial Number)[ \t]+((?:{_HEX_PAIR}[:-]){{7,19}}{_HEX_PAIR})\b",
    r"\[V\w\] Vendor specific:[ \t]*([\w.-]{6,64})",
    # MAC addresses in the format of switches, and a machine id on a line of its own
    r"(?<![\w.])(?=[\d.]{0,13}[a-f])([0-9a-f]{4}\.[0-9a-f]{4}\.[0-9a-f]{4})(?![\w.])",
    r"^([0-9a-f]{32})[ \t]*$",
    # partitions
    r"\b(?:PART)?UUID=[\"']?([0-9a-f]{4}-[0-9a-f]{4}\b|[0-9a-f]{8}(?=-[0-9a-f]{2}\b))",
    # docker before version 24
    r"^[ \t]*ID:[ \t]*((?:[A-Z2-7]{4}:){11}[A-Z2-7]{4})\b",
)
# Almost all zeros, which already is a mask; vendor GUIDs of firmware variables: UEFI, its key lists, shim.
_NOBODYS_NUMBER: Final = (
    r"0{4,}[0-9a-f]{4}|8be4df6193ca11d2aa0d00e098032b8c|d719b2cb3d3a4596a3bcdad00e67656f"
    r"|605dab50e0464300abb63dd810dd8b23"
)
_LABELLED_SERIAL_NUMBER: Final = (
    r"(?:\b(?:Serial(?:[ _-]?(?:Number|No\.?))?|S/N|Asset[ _]Tag)[\"']?[ \t]{0,60}[:=][ \t]*[\"']?"
    r"|\bchassisSN\b[\"']?[ \t:=]{1,9}[\"']?)(?!(?:N/A|None|null|Unknown|Not Specified|serial-\d)\b)([\w.+/-]{2,64})"
)
_SERIAL_NUMBER_PATTERNS: Final = (
    _LABELLED_SERIAL_NUMBER,
    r"\bserial_(?:number|no)[ \t]+(?=[\w-]{0,40}\d)([\w-]{6,40})\b",
    # NVMe's qualified names, and disks by their id: nvme-MODEL_SERIAL
    r"\bnqn\.[\w.-]{1,80}:(?!uuid:)([\w.:-]{6,128})",
    r"(?-i:\b(?:nvme|ata|scsi|usb|virtio)-[A-Za-z\d][\w.+-]{2,80}_(?=[A-Z]{0,20}\d)([A-Z\d]{6,20})(?=-part\d|[^\w-]|\Z))",
)
# A table printed by nvidia-smi, recognised by its header or by the preceding query.
_GPU_QUERY_CSV_HEAD: Final = (
    r"^(?:[^\n]{0,200}--query-gpu=([\w.,]{1,400})[^\n]{0,200}|([a-z_.]+(?:,[ ][\w.]+(?:[ ]\[\w+\])?){0,40}))\n"
)
_QUERIED_VALUE: Final = r"[\w.+/-]{1,64}|\[[^\]]{1,40}\]"
_USER_NAME: Final = r"([a-z_][\w.-]{0,31})"
_USER_NAME_PATTERNS: Final = (
    # the owner of a home, a session or a sudo command, or the user who ran a package manager
    (
        r"(?-i:(?:(?<![\w./-])/home/|\bsudo(?:\[\d{1,10}\])?:[ \t]+|\b(?:for|of) user |\bUSER=|\b(?:ses|log)name[= ]"
        r"|\bsession opened for user |\bRequested-By:[ ]|\b(?:e|s|fs)?uid=\d{1,10}\()"
        rf"{_USER_NAME}(?=[/\s:;,()\"']|\Z))"
    ),
    rf"(?-i:\b(?:Accepted|Failed) [\w/-]{{1,40}} for (?:invalid user )?{_USER_NAME} from )",
    rf"(?-i:\bsession opened for user [\w.-]{{1,32}}(?:\(uid=\d{{1,10}}\))? by {_USER_NAME}(?=[(\s]|\Z))",
    rf"(?-i:\bsu(?:\[\d{{1,10}}\])?: \(to [\w.-]{{1,32}}\) {_USER_NAME} on )",
    # the columns of `ls -l` and of `ps aux`
    rf"(?-i:^[bcdlps-][rwxsStT-]{{9}}[.+@]?[ ]+\d{{1,9}}[ ]+{_USER_NAME}[ ]+[\w.+-]{{1,32}}[ ])",
    rf"(?-i:^{_USER_NAME}\+?[ ]+\d{{1,10}}[ ]+\d{{1,3}}\.\d[ ]+\d{{1,3}}\.\d[ ])",
)
# Signers of modules and programs: in a certificate, in the kernel's key list, in a module.
_SIGNER_PATTERNS: Final = (
    r"^[ \t]*(?:Subject|Issuer):[ \t]*((?=[^\n]{0,200}=)[^\n]{1,500})",
    r"\bX\.509 cert '([^'\n]{1,200}?)(?=: [0-9a-f]{8,64}')",
    r"^signer:[ \t]+([^\n]{1,200})",
)
_COMMON_NAME: Final = r".*?\bCN[ ]?=[ ]?([^,/\n]{1,200}).*"
_PUBLIC_SIGNER: Final = (
    r"signer-\d+|(?:Microsoft|Canonical|Debian|Ubuntu|Fedora|Red Hat|CentOS|Rocky|AlmaLinux|Oracle|SUSE|openSUSE|NVIDIA"
    r"|VMware|Build time autogenerated|DKMS|sforshee|wens|benh@|.{0,40}\(?UEFI CA).*"
)
_EMAIL_ADDRESS: Final = (
    r"(?<![\w.+/-])(?<!://)([\w.+-]{1,64}@(?:[a-z\d-]{1,63}\.){1,8}"
    r"(?!(?:service|socket|target|timer|slice|scope|mount|device|path|swap|automount)\b)[a-z]{2,24})(?![\w@-]|\.\w)"
)
_HOST_NAME: Final = r"([\w.-]{1,253})"
_HOST_NAME_PATTERNS: Final = (
    # before a message in journalctl and syslog
    (
        r"(?-i:^(?:\d{4}-\d\d-\d\dT[\d:.,+Z-]{8,30}|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d{1,6})?) )"
        rf"{_HOST_NAME}(?= [^\s:\[]{{1,64}}(?:\[\d{{1,10}}\])?: )"
    ),
    (
        r"(?:\bHostname set to <|^[ \t]*(?:Host ?name|Static hostname|Node Name):[ \t]*"
        # docker info; the licence server of a vGPU
        r"|(?-i:^ Name: )|^[ \t]*(?:Backup)?ServerAddress=(?=[\d.]*[a-z])"
        # Kubernetes: in a pod, in describe, in the kubelet's log, and in the Node object
        r"|(?:\bkubernetes\.io/hostname|\bnode-?name|--hostname-override)[\"']?[:= \0][ \t]*[\"']?(?=[\w-])"
        r"|\bserver[\"']?[:= ][ \t]*[\"']?https?://(?=[\w-]{1,63}(?:[:/\"'\s]|\Z))(?!localhost\b|kubernetes\b|\d+[:/\s])"
        r"|^Node:[ \t]+|\bnode=[\"']|\bsystem:node:(?=[a-z\d])"
        r"|\"type\":[ ]?\"(?:Hostname|InternalDNS|ExternalDNS)\",[ ]?\"address\":[ ]?\""
        r"|\b(?:csi)?nodes?(?:\.storage\.k8s\.io)? (?P<quote>\\{0,7}\")(?=[\w.-]{1,253}(?P=quote) )"
        # uname -a; a shell prompt
        r"|^Linux (?=[\w.-]{1,253} \d+\.\d+\S{0,80} #\d)"
        r"|^\[?[\w.-]{1,64}@(?=[\w.-]{1,253}(?::[^\s:]{0,200}|[ ][^\s\]]{1,200}\])[#$](?:\s|\Z)))"
        rf"{_HOST_NAME}"
        # kubectl get nodes; Amazon's host names
        rf"|^{_HOST_NAME}(?=[ ]+(?:Not)?Ready[, ])|\b(ip(?:-\d{{1,3}}){{4}}(?:\.[a-z][\w-]*)*)\b"
    ),
    # file servers, in kernel messages and in mounts
    rf"\bnfs4?: server {_HOST_NAME}(?= (?:not responding|OK))|\bNFS: {_HOST_NAME}(?=: lost )",
    rf"\bCIFS: [^\n\\]{{0,80}}\\{{2,4}}{_HOST_NAME}",
    (
        rf"^(?://)?{_HOST_NAME}"
        r"(?=:?/\S{0,200}[ \t]+(?:on[ \t]+)?/\S{0,200}[ \t]+(?:type[ \t]+)?(?:nfs|lustre|ceph|fuse\.|cifs|smb))"
    ),
    rf"(?<![\w.-])(?=[\w.-]{{1,253}}@(?:o2ib|tcp)\d{{0,3}}\b){_HOST_NAME}",
    # Slurm; InfiniBand
    (
        r"\b(?:(?:Req|Exc|Sched)?NodeList|Node(?:Addr|HostName)|BatchHost|SLURM\w{0,20}_NODE(?:LIST|NAME))="
        rf"(?=\w){_HOST_NAME}"
    ),
    rf"\bnode[_ ]desc(?:ription)?[\"']?[:= \t]{{1,9}}[\"']?(?=\w){_HOST_NAME}",
)
# Outside of URLs, files and resources (`main.go:12`, `amd.com/gpu`) look like servers. There, the last label must be a
# known one, or the context must name a registry, an image or a lookup. A bare name is left to _HOST_NAME_PATTERNS.
_TOP_LEVEL_DOMAIN: Final = (
    r"(?:com|net|org|io|dev|cloud|internal|intranet|local|localdomain|lan|corp|home|private|ai|co|edu|gov|mil|int|eu|de"
    r"|fr|uk|us|ch|at|nl|be|it|es|se|no|fi|dk|jp|cn|in|au|ca|br|kr|ru|cz)"
)
_DOTTED_LABELS: Final = r"(?:[a-z\d-]{1,63}\.){1,8}"
_DOMAIN_NAME: Final = rf"({_DOTTED_LABELS}[a-z][a-z\d-]{{1,62}})"
_SERVER_NAME_PATTERNS: Final = (
    rf"(?<=://)(?:[^\s/@\"'<>]{{1,256}}@)?{_DOMAIN_NAME}",
    rf"(?:\b(?:mirrors|configs)\.\\?[\"']|\b(?:certs|hosts)\.d/|\blookup[ \t]+){_DOMAIN_NAME}",
    (
        r"(?:image(?:name|_name|id)?\\{0,7}[\"']?[ \t]{0,9}[:=]?[ \t]{0,9}\\{0,7}[\"']?"
        rf"|\bpull(?:ing)?[ \t]+(?:image[ \t]+)?\\{{0,7}}[\"']?){_DOMAIN_NAME}(?=(?::\d{{1,5}})?/[a-z\d])"
    ),
    rf"(?<![\w./@:-])({_DOTTED_LABELS}{_TOP_LEVEL_DOMAIN})(?=:\d{{2,5}}(?![\w.]))",
    rf"^[ \t]{{1,8}}[\"']?({_DOTTED_LABELS}{_TOP_LEVEL_DOMAIN})[\"']?:[ \t]*$",
    rf"\b(?:default_)?realm[\"']?[ \t]{{0,9}}[:= ][ \t]{{0,9}}[\"']?{_DOMAIN_NAME}",
)
# In resolv.conf and for systemd-resolved.
_SEARCH_DOMAINS: Final = r"^(?:(?:search|domain)[ \t]+|Domains=|[ \t]*DNS Domain:[ \t]*)([^\n]{1,1000})"
# The names in the server certificate of k3s.
_TLS_SAN_SETTING: Final = (
    r"\btls-san[\"']?[ \t]{0,9}[:=]?([ \t]+[^\n]{1,1000}|=\S{1,1000}|(?:[ \t]*\n[ \t]*-[ \t]+[^\n]{1,300}){1,50})"
)
_TLS_SAN_NAME: Final = r"(?<![\w.:-])([a-z][a-z\d-]{0,62}(?:\.[a-z\d-]{1,63}){0,8})(?![\w.:-])"
# Public servers, which may stay in a diagnosis.
_PUBLIC_SERVER: Final = (
    r"(?:.*\.)?(?:(?:nvidia|mellanox|gitlab|docker|googleapis|google|microsoft|amazonaws|ubuntu|canonical|redhat|oracle|suse"
    r"|anaconda|githubusercontent|stackoverflow)\.com|(?:nvcr|ghcr|docker|quay|gcr|k8s|kubernetes|snapcraft|redhat|k3s|rancher"
    r"|containerd|crictl|cri-o|tigera)\.io|(?:debian|fedoraproject|centos|rockylinux|almalinux|opensuse|archlinux|kernel"
    r"|freedesktop|gnu|python|pypi|pythonhosted|pytorch|anaconda|opencontainers|projectcalico)\.org|github\.(?:com|io)"
    r"|debian\.net|azureedge\.net|launchpad(?:content)?\.net|pkg\.dev|public\.ecr\.aws|suse\.de|huggingface\.co|hf\.co"
    r"|svc|cluster\.local|example\.(?:com|org|net))"
)
_IPV4_ADDRESS: Final = r"(?<![\w.+~-])(?<!\d:)((?:\d{1,3}\.){3}\d{1,3})(?![\w+~-]|\.\d)"
# Four numbers may be a version: a public address is only recognised after one of these words.
_PUBLIC_IPV4: Final = (
    r"(?:://|@|\b(?:inet|addr|address|server|host|from|to|ip|via|dial tcp|nameserver)[\"':= \t]{1,4})"
    r"((?:\d{1,3}\.){3}\d{1,3})(?![\w+~-]|\.\d)"
)
_IPV6_ADDRESS: Final = r"(?<![\w:.])(?=[0-9a-f:]{0,40}\d)((?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{0,4})(?![\w:.])"
# Host names that are also ordinary words. They are masked only where a host is named.
_COMMON_HOST: Final = r"[a-z]*|.{1,5}|localhost.*|.*(?:nvidia|docker|containerd|kernel|systemd).*"
# Default names given by tools: they identify nobody. The name of a profile is chosen by its owner and is not here.
_DEFAULT_CLUSTER_NODE_NAME: Final = (
    r"minikube(?:-m\d{1,3})?|kind(?:-(?:control-plane|worker)\d{0,3})?|k3d(?:-k3s-default(?:-(?:agent|server)-\d{1,3})?)?"
    r"|docker-desktop(?:-(?:control-plane|worker)\d{0,3})?|(?:lima-)?rancher-desktop|colima|orbstack|microk8s-vm"
)
_NOT_A_HOST_NAME: Final = r"localhost.*|kubernetes|\d*"
# Accounts created by systems and clouds. They identify nobody.
_SYSTEM_USER: Final = (
    r"user-\d+|root|nobody|ubuntu|debian|core|runner|daemon|bin|sys|sync|games|man|lp|mail|news|uucp|proxy|www-data|backup|list"
    r"|irc|gnats|_\w+|systemd[\w-]*|messagebus|sshd|syslog|polkitd|dbus|nvidia[\w-]*|ollama|docker|containerd|kube\w*|etcd|slurm"
    r"|munge|chrony|ntp|rtkit|avahi|colord|Debian-\w+|[\w-]*gdm|sddm|lightdm|ec2-user|admin|centos|rocky|fedora|opc|vagrant"
    r"|azureuser|cloud-user|postgres|mysql|redis|prometheus|grafana|node[_-]exporter|uuidd|tss|tcpdump|landscape|pollinate|lxd|usbmux"
)
# User names that are also ordinary words. They are masked only where a user is named.
_COMMON_USER: Final = (
    rf"{_SYSTEM_USER}|.{{1,3}}|users?|test\w*|data|dev|devel\w*|gpu\w*|cuda|video|render|server|service|system|node|worker|master"
    r"|kernel|driver|python\w*|jupyter|build\w*|deploy\w*|ansible|oper\w*|local|guest|default|nfs|web|cluster|training|model"
)
# Places where a known name, even an ordinary word, must be a node's: static pods, leases, certificates and requests.
_NODE_CONTEXT_TEMPLATE: Final = (
    r"(?:(?<![a-zA-Z\d-])(?:kube-(?:apiserver|controller-manager|proxy|scheduler|vip)|cloud-controller-manager|etcd)-"
    r"|\b(?:nodes?|leases|csinodes)(?:\.[a-z\d.]{1,40})?(?:/|[ ]\\{0,7}\")|\bon node: |\b(?:control-plane|for) node "
    r"|\bobject=\\{0,7}\"/?|\bCN[ ]?=[ ]?)(WORDS(?:\.[a-z][a-z\d-]*)*)(?![a-z\d-])"
    r"|(?:://|@|\blookup[ ]|^127\.0\.1\.1[ \t]+|\bhostname[\"']?[:=][ ]?[\"']?)(WORDS)(?![a-z\d-])(?!\.\w)"
)
_ANYWHERE_TEMPLATE: Final = r"(?<![\w-])(WORDSTAIL)(?![\w-])"
MaskRule: TypeAlias = tuple[IdentityKind, str]
# The order matters. Values found by these rules are masked everywhere else, too.
_MASK_RULES: Final[tuple[MaskRule, ...]] = (
    *(("number", number) for number in _ID_NUMBER_PATTERNS),
    *(("user", user) for user in _USER_NAME_PATTERNS),
    *(("serial", serial) for serial in _SERIAL_NUMBER_PATTERNS),
    *(("signer", signer) for signer in _SIGNER_PATTERNS),
    *(("host", host) for host in _HOST_NAME_PATTERNS),
    ("email", _EMAIL_ADDRESS),
    ("address", _IPV4_ADDRESS),
    ("public address", _PUBLIC_IPV4),
    ("address", _IPV6_ADDRESS),
)
# Reserved for benchmarks and documentation (RFC 2544, RFC 3849), and for carriers (RFC 6598).
_MASK_IPV4_NETWORK: Final = ip_network("198.18.0.0/15")
_MASK_IPV6_NETWORK: Final = ip_network("2001:db8::/32")
_CARRIER_NAT_NETWORK: Final = ip_network("100.64.0.0/10")
_NODE_NAME_PROBE_KEY: Final = "node-name"


def anonymize_evidence(evidence: Evidence) -> Evidence:
    """Return ``evidence`` without anything that identifies the machine.

    A host name that is short or an ordinary word is masked only where a host is named.
    """
    masks = _Masks(evidence)

    def contents(data: bytes) -> bytes:
        return mask_bytes(data, masks.mask_text)

    masked = {
        key: rewrite_capture(capture, contents, masks.mask_text, paths=masks.mask_text)
        for key, capture in sorted(evidence.items())
    }
    if name := evidence.get(_NODE_NAME_PROBE_KEY):
        data = f"{masks.mask('host', name.text.strip())}\n".encode() if name.data else b""
        masked[_NODE_NAME_PROBE_KEY] = replace(name, data=data)
    return masked


def _learn_rules(evidence: Evidence) -> Iterator[MaskRule]:
    """Yield rules for the names and serial numbers in ``evidence``, wherever they recur."""
    texts = [capture.text for capture in evidence.values()]

    def find_names(*patterns: str) -> set[str]:
        matches = (
            match for one in patterns for text in texts for match in compile_cached(one, _REGEX_FLAGS).finditer(text)
        )
        return {match[match.lastindex or 0].lower() for match in matches}

    certified = {
        name for names in find_names(_TLS_SAN_SETTING) for name in compile_cached(_TLS_SAN_NAME).findall(names)
    }
    searched = {name for names in find_names(_SEARCH_DOMAINS) for name in names.split() if "." in name.strip(".~")}
    servers = find_names(*_SERVER_NAME_PATTERNS) | {name for name in certified | searched if "." in name}
    hosts = {name.partition(".")[0] for name in find_names(*_HOST_NAME_PATTERNS)} | (certified - servers)
    if _NODE_NAME_PROBE_KEY in evidence:
        hosts.add(evidence[_NODE_NAME_PROBE_KEY].text.strip().partition(".")[0].lower())
    yield from _word_mask_rule("host", _NODE_CONTEXT_TEMPLATE, hosts, other_than=_NOT_A_HOST_NAME)
    queried = {value.lower() for text in texts for value in _queried_serials(text)}
    yield from _word_mask_rule(
        "serial", _ANYWHERE_TEMPLATE, find_names(*_SERIAL_NUMBER_PATTERNS) | queried, other_than=r"\D*|.{0,5}"
    )
    signers = {_common_name(signer) for signer in find_names(*_SIGNER_PATTERNS)}
    yield from _word_mask_rule("signer", _ANYWHERE_TEMPLATE, signers, other_than=rf"{_PUBLIC_SIGNER}|\w{{1,8}}")
    yield from _word_mask_rule("user", _ANYWHERE_TEMPLATE, find_names(*_USER_NAME_PATTERNS), other_than=_COMMON_USER)
    yield from _word_mask_rule("server", _ANYWHERE_TEMPLATE, servers, other_than=_PUBLIC_SERVER)
    unmistakable = _ANYWHERE_TEMPLATE.replace("TAIL", r"(?:\.[a-z][\w-]*)*")
    yield from _word_mask_rule("host", unmistakable, hosts, other_than=rf"{_COMMON_HOST}|{_DEFAULT_CLUSTER_NODE_NAME}")


def _queried_serials(text: str) -> Iterator[str]:
    """Yield the serial numbers in tables printed by `nvidia-smi --query-gpu=… --format=csv`."""
    for head in compile_cached(_GPU_QUERY_CSV_HEAD, re.MULTILINE).finditer(text):
        columns = [column.strip() for column in (head[1] or head[2]).split(",")]
        if (index := next((n for n, name in enumerate(columns) if name in {"serial", "gpu_serial"}), None)) is None:
            continue
        for line in text[head.end() : head.end() + 40_000].split("\n")[:200]:
            row = line.split(", ")
            # The output of the next command may have the same number of commas.
            if len(row) != len(columns) or not compile_cached(_QUERIED_VALUE).fullmatch(row[index].strip()):
                break
            yield row[index].strip()


def _common_name(signer: str) -> str:
    """Return the common name in a certificate's subject; any other text is the name itself."""
    match = compile_cached(_COMMON_NAME).fullmatch(signer.strip())
    return (match[1] if match else signer).strip()


def _word_mask_rule(kind: IdentityKind, pattern: str, words: Iterable[str], *, other_than: str) -> Iterator[MaskRule]:
    """Yield the rule for any of ``words`` except ``other_than``."""
    kept = sorted((word for word in words if not compile_cached(other_than).fullmatch(word)), key=len, reverse=True)
    if kept:
        yield kind, pattern.replace("WORDS", f"(?:{'|'.join(map(re.escape, kept))})").replace("TAIL", "")


class _Masks:
    """The masks assigned so far, numbered separately for each kind."""

    def __init__(self, evidence: Evidence) -> None:
        self._rules = (*_MASK_RULES, *_learn_rules(evidence))
        self._given: dict[str, dict[str, int]] = {}

    def mask_text(self, text: str) -> str:
        """Return ``text`` with all identifying values masked."""
        for kind, pattern in self._rules:
            text = mask_matches(pattern, text, partial(self.mask, kind), _REGEX_FLAGS)
        return text

    def _mask_number(self, value: str) -> str:
        digits = "".join(filter(str.isalnum, value))
        if compile_cached(_NOBODYS_NUMBER).fullmatch(digits):
            return value
        masked = iter(f"{self._number_of('number', digits):x}".rjust(len(digits), "0"))
        return "".join(next(masked) if char.isalnum() else char for char in value)

    def mask(self, kind: IdentityKind, value: str) -> str:
        """Return the mask for ``value``, or ``value`` if it identifies nobody."""
        match kind:
            case "number":
                return self._mask_number(value)
            case "user":
                is_kept = compile_cached(_SYSTEM_USER, 0).fullmatch(value)
                return value if is_kept else f"user-{self._number_of(kind, value)}"
            case "serial":
                is_kept = compile_cached(r"serial-\d+").fullmatch(value)
                return value if is_kept else f"serial-{self._number_of(kind, value)}"
            case "signer":
                name = _common_name(value)
                if compile_cached(_PUBLIC_SIGNER).fullmatch(name):
                    return value
                return f"{'CN=' if '=' in value else ''}signer-{self._number_of(kind, name)}"
            case "email":
                is_kept = compile_cached(_PUBLIC_SERVER).fullmatch(value.partition("@")[2])
                return value if is_kept else f"email-{self._number_of(kind, value)}@example.com"
            case "host":
                is_kept = compile_cached(rf"host-\d+|{_DEFAULT_CLUSTER_NODE_NAME}").fullmatch(value)
                return value if is_kept else f"host-{self._number_of(kind, value.partition('.')[0])}"
            case "server":
                return f"server-{self._number_of(kind, value)}.example.com"
            case "address" | "public address":
                return self._mask_address(value, is_public=kind == "public address")

    def _mask_address(self, value: str, *, is_public: bool) -> str:
        try:
            address = ip_address(value)
        except ValueError:
            return value
        if (
            address.is_loopback
            or address.is_link_local
            or address in _MASK_IPV6_NETWORK
            or address in _MASK_IPV4_NETWORK
        ):
            return value
        if isinstance(address, IPv6Address):
            return str(_MASK_IPV6_NETWORK[self._number_of("ipv6", str(address))])
        is_local = address.is_private or address in _CARRIER_NAT_NETWORK
        if address.packed[0] in {0, 255} or not (is_local or is_public):
            return value
        return str(_MASK_IPV4_NETWORK[self._number_of("ipv4", value)])

    def _number_of(self, kind: str, value: str) -> int:
        given = self._given.setdefault(kind, {})
        return given.setdefault(value.lower(), len(given) + 1)
