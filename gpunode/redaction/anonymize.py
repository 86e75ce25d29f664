"""Evidence that names neither the machine nor its parts nor its network, nor its neighbours.

Serial numbers, UUIDs, MAC and IP addresses, host names and servers of somebody's own are masked. What is equal stays
equal and keeps its form, so that a diagnosis of the masked evidence is that of the evidence. The replacements are
numbers in the order of their first appearance: they tell nothing, also not to one who tries all MAC addresses of a
vendor, and the same evidence gives the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

from gpunode.facts.evidence import Capture, Evidence, Found, decode_found, encode_found

# In paths of cgroups with underscores.
_UUID: Final = re.compile(
    r"(?:(?<=pod)|(?<![0-9a-f]))[0-9a-f]{8}([-_])[0-9a-f]{4}\1[0-9a-f]{4}\1[0-9a-f]{4}\1[0-9a-f]{12}(?![0-9a-f])",
    re.IGNORECASE,
)
# Behind an interface's name on the kernel's command line; with dashes, where it is no date; with no sign where a word
# or an interface's own name says what it is.
_MAC: Final = re.compile(
    r"(\b(?:ifname|ip)=\S{0,200}?:|(?<![\w:.-]))((?:[0-9a-f]{2}:){5}[0-9a-f]{2})(?![\w:])"
    r"|((?<![\w-]))(?=[\d-]{0,17}[a-f])((?:[0-9a-f]{2}-){5}[0-9a-f]{2})(?![\w-])"
    r"|(\b(?:mac|hwaddr|macaddr|ether)(?:[ _-]?addr(?:ess)?)?[\"']?[ \t]{0,9}[:=]?[ \t]{0,9}[\"']?(?:0x)?"
    r"|\b(?:enx|wlx|wwx))([0-9a-f]{12})\b",
    re.IGNORECASE,
)
# An InfiniBand GUID, also as its address, a PCI device's serial number, what its maker wrote into it, a GPU's own
# number, a disk's, the address that a node started from, an id of systemd, of a cloud, docker's own (before 24).
_NUMBER: Final = re.compile(
    r"(\bGUID:[ \t]*0x)([0-9a-f]{16})\b"
    r"|(\bDevice Serial Number[ \t]+)((?:[0-9a-f]{2}-){7}[0-9a-f]{2})\b"
    r"|(\b(?:\w{1,20}_)?GUID:?[ \t]+)((?:[0-9a-f]{4}:){3}[0-9a-f]{4})\b"
    r"|(^[ \t]*mlx\d_\w{1,20}[ \t]+)([0-9a-f]{16}|(?:[0-9a-f]{4}:){3}[0-9a-f]{4})\b"
    r"|(\bfe80:(?::|(?:0{1,4}:){3}))((?:[0-9a-f]{1,4}:){3}[0-9a-f]{1,4})\b"
    r"|(\[V\w\] Vendor specific:[ \t]*)([\w.-]{6,64})"
    r"|(\bGPU PDI[ \t]{0,60}:[ \t]*0x)([0-9a-f]{8,16})\b"
    r"|(\bwwn[-:= \t]{1,9}(?:0x)?)([0-9a-f]{16})\b"
    r"|(\b(?:eui|naa)\.)([0-9a-f]{16,32})\b"
    r"|(\bPARTUUID=[\"']?)([0-9a-f]{8})(?=-[0-9a-f]{2}\b)"
    r"|(\bUUID=[\"']?)([0-9a-f]{4}-[0-9a-f]{4})\b"
    r"|(\blink/infiniband[ \t]+)((?:[0-9a-f]{2}:){19}[0-9a-f]{2})\b"
    r"|(\bBOOTIF=(?:01-)?)((?:[0-9a-f]{2}-){5}[0-9a-f]{2})\b"
    r"|(\bmachine[ _-]?id\\{0,7}[\"']?[ \t]{0,9}[:=]?[ \t]{0,9}\\{0,7}[\"']?)([0-9a-f]{32})\b"
    r"|((?:\bproviderID[\"']?:[ \t]*[\"']?\w{1,20}|\b(?:aws|gce|azure|vsphere|openstack))://)([^\s\"',\\]{1,200})"
    r"|(\bi-)([0-9a-f]{17})\b"
    r"|(^[ \t]*ID:[ \t]*)((?:[A-Z2-7]{4}:){11}[A-Z2-7]{4})\b",
    re.IGNORECASE | re.MULTILINE,
)
_SERIAL: Final = re.compile(
    r"(\b(?:Serial(?:[ _-]?(?:Number|No\.?))?|S/N|Asset[ _]Tag)[\"']?[ \t]{0,60}[:=][ \t]*[\"']?"
    r"|\bchassisSN\b[\"']?[ \t:=]{1,9}[\"']?)(?!(?:N/A|None|null|Unknown|Not Specified|serial-\d)\b)([\w.+/-]{2,64})",
    re.IGNORECASE,
)
# Whose home, session or sudo it is; the names that images come with are nobody's.
_USER: Final = re.compile(
    r"((?<![\w./-])/home/|\bsudo(?:\[\d{1,10}\])?:[ \t]+|\b(?:for|of) user |\bUSER=|\b(?:ses|log)name[= ]"
    r"|\bsession opened for user )([a-z_][\w.-]{0,31})(?=[/\s:;,(\"']|\Z)"
)
_LONG: Final = re.compile(r"(?=.*\d).{8,}")
# Where a host's name stands: before a message of journalctl and syslog, and where tools say it.
_STAMP: Final = r"(?:\d{4}-\d\d-\d\dT[\d:.,+Z-]{8,30}|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d{1,6})?)"
_BEFORE_MESSAGE: Final = re.compile(
    rf"^({_STAMP} )(?P<said>[\w.-]{{1,253}})(?= [^\s:\[]{{1,64}}(?:\[\d{{1,10}}\])?: )", re.MULTILINE
)
_SAID: Final = re.compile(
    r"(\bHostname set to <|^[ \t]*(?:Host ?name|Static hostname|Node Name):[ \t]*"
    r"|kubernetes\.io/hostname[:=][ \t]*[\"']?"
    # docker info; the licence server of a virtual GPU
    r"|(?-i:^ Name: )|^[ \t]*(?:Backup)?ServerAddress=(?=[\d.]*[a-z])"
    # Kubernetes: of a pod, in describe, in the kubelet's log, and in the node's own object
    r"|^[ \t-]*node-name:[ \t]+[\"']?|--node-name[= \0]"
    r"|\bserver[\"']?[:= ][ \t]*[\"']?https?://(?=[\w-]{1,63}(?:[:/\"'\s]|\Z))(?!localhost\b|kubernetes\b|\d+[:/\s])"
    r"|[\"']?nodeName[\"']?[:=][ \t]*[\"']?(?=[\w-])|^Node:[ \t]+|\bnode=[\"']|--hostname-override[= \0]"
    r"|\"type\":[ ]?\"(?:Hostname|InternalDNS|ExternalDNS)\",[ ]?\"address\":[ ]?\""
    r"|\bsystem:node:(?=[a-z\d])"
    r"|\b(?:csi)?nodes?(?:\.storage\.k8s\.io)? (?P<quote>\\{0,7}\")(?=[\w.-]{1,253}(?P=quote) )"
    # uname -a; a shell that waits for a command
    r"|^Linux (?=[\w.-]{1,253} \d+\.\d+\S{0,80} #\d)"
    r"|^\[?[\w.-]{1,64}@(?=[\w.-]{1,253}(?::[^\s:]{0,200}|[ ][^\s\]]{1,200}\])[#$](?:\s|\Z)))"
    r"(?P<said>[\w.-]{1,253})"
    r"|(?P<row>^[\w.-]{1,253})(?=[ ]+(?:Not)?Ready[, ])|(?P<cloud>\bip-\d{1,3}-\d{1,3}-\d{1,3}-\d{1,3})\b",
    re.IGNORECASE | re.MULTILINE,
)
# A server that is named in an address, with its own domain; a name of one word is left to the rules above.
_SERVER: Final = re.compile(
    r"(?<=://)(?:[^\s/@\"'<>]{1,256}@)?(?P<host>(?:[a-z\d-]{1,63}\.){1,8}[a-z][a-z\d-]{1,62})", re.IGNORECASE
)
# Where no scheme tells: a registry, an image's, a port, a certificate's name, a name that was looked up. Files and
# resources (`main.go:12`, `amd.com/gpu`) look alike: the last word must be one of names, and an image be called so.
_TOP: Final = (
    r"(?:com|net|org|io|dev|cloud|internal|intranet|local|localdomain|lan|corp|home|private|ai|co|edu|gov|mil|int|eu|de"
    r"|fr|uk|us|ch|at|nl|be|it|es|se|no|fi|dk|jp|cn|in|au|ca|br|kr|ru|cz)"
)
_DOTTED: Final = r"(?:[a-z\d-]{1,63}\.){1,8}"
_UNSCHEMED: Final = re.compile(
    r"(?:(?:\b(?:mirrors|configs)\.\\?[\"']|\b(?:certs|hosts)\.d/|\blookup[ \t]+)"
    rf"(?P<named>{_DOTTED}[a-z][a-z\d-]{{1,62}})"
    r"|(?:image(?:name|_name|id)?\\{0,7}[\"']?[ \t]{0,9}[:=]?[ \t]{0,9}\\{0,7}[\"']?"
    r"|\bpull(?:ing)?[ \t]+(?:image[ \t]+)?\\{0,7}[\"']?)"
    rf"(?P<image>{_DOTTED}[a-z][a-z\d-]{{1,62}})(?=(?::\d{{1,5}})?/[a-z\d])"
    rf"|(?<![\w./@:-])(?P<port>{_DOTTED}{_TOP})(?=:\d{{2,5}}(?![\w.]))"
    rf"|^[ \t]{{1,8}}[\"']?(?P<key>{_DOTTED}{_TOP})[\"']?:[ \t]*$)",
    re.IGNORECASE | re.MULTILINE,
)
_CERTIFIED: Final = re.compile(
    r"\btls-san[\"']?[ \t]{0,9}[:=]?(?P<names>[ \t]+[^\n]{1,1000}|=\S{1,1000}"
    r"|(?:[ \t]*\n[ \t]*-[ \t]+[^\n]{1,300}){1,50})"
)
_CERTIFIED_NAME: Final = re.compile(
    r"(?<![\w.:-])[a-z][a-z\d-]{0,62}(?:\.[a-z\d-]{1,63}){0,8}(?![\w.:-])", re.IGNORECASE
)
# Those of everybody, of which the diagnosis may speak.
_PUBLIC: Final = re.compile(
    r"(?:.*\.)?(?:nvidia\.com|nvidia\.github\.io|nvcr\.io|ghcr\.io|github\.(?:com|io)|githubusercontent\.com|gitlab\.com"
    r"|docker\.(?:com|io)|quay\.io|gcr\.io|k8s\.io|kubernetes\.io|pkg\.dev|googleapis\.com|google\.com|mcr\.microsoft\.com"
    r"|microsoft\.com|amazonaws\.com|public\.ecr\.aws|azureedge\.net|ubuntu\.com|launchpad(?:content)?\.net|canonical\.com"
    r"|snapcraft\.io|debian\.(?:org|net)|redhat\.com|redhat\.io|fedoraproject\.org|centos\.org|rockylinux\.org|almalinux\.org"
    r"|oracle\.com|suse\.(?:com|de)|opensuse\.org|archlinux\.org|kernel\.org|freedesktop\.org|gnome\.org|mozilla\.org"
    r"|python\.org|pypi\.org|pythonhosted\.org|pytorch\.org|anaconda\.(?:com|org)|huggingface\.co|hf\.co|rancher\.io|k3s\.io"
    r"|mellanox\.com|gnu\.org|sourceforge\.net|stackoverflow\.com|wikipedia\.org|json-schema\.org|opencontainers\.org|cncf\.io"
    r"|schema\.org|w3\.org|containerd\.io|crictl\.io|cri-o\.io|tigera\.io|projectcalico\.org|svc|cluster\.local|example\.(?:com|org|net))",
    re.IGNORECASE,
)
_IPV4: Final = re.compile(r"(?<![\w.+~-])(?<!\d:)(?:\d{1,3}\.){3}\d{1,3}(?![\w+~-]|\.\d)")
_IPV6: Final = re.compile(
    r"(?<![\w:.])(?=[0-9a-f:]{0,40}\d)(?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{0,4}(?![\w:.])", re.IGNORECASE
)
# What stands before a public address: four numbers may be a version.
_ADDRESSED: Final = re.compile(
    r"(?:://|@|\b(?:inet|addr|address|server|host|from|to|ip|via|dial tcp|nameserver)[\"':= \t]{1,4})$", re.IGNORECASE
)
# A word of other meanings, too: hidden only where a host's name stands.
_COMMON: Final = re.compile(r"[a-z]*|.{1,5}|localhost.*|.*(?:nvidia|docker|containerd|kernel|systemd).*", re.IGNORECASE)
# Names that tools give by themselves: they tell what the node is, and of nobody. A profile's name is its owner's.
_OF_TOOLS: Final = re.compile(
    r"minikube(?:-m\d{1,3})?|kind(?:-(?:control-plane|worker)\d{0,3})?|k3d(?:-k3s-default(?:-(?:agent|server)-\d{1,3})?)?"
    r"|docker-desktop(?:-(?:control-plane|worker)\d{0,3})?|(?:lima-)?rancher-desktop|colima|orbstack|microk8s-vm",
    re.IGNORECASE,
)
# Where a known name is a host's, though it may be a plain word or short: a pod that the kubelet starts of a file is
# called after its node, and so are the node's lease, its certificates and what is asked of it.
_OF_NODE: Final = (
    r"(?<![a-zA-Z\d-])(?:kube-(?:apiserver|controller-manager|proxy|scheduler|vip)|cloud-controller-manager|etcd)-"
    r"|\b(?:nodes?|leases|csinodes)(?:\.[a-z\d.]{1,40})?(?:/|[ ]\\{0,7}\")|\bon node: |\b(?:control-plane|for) node "
    r"|\bobject=\\{0,7}\"/?|\bCN[ ]?=[ ]?"
)
_ADDRESSED_BY_NAME: Final = r"://|@|\blookup[ ]|^127\.0\.1\.1[ \t]+|\bhostname[\"']?[:=][ ]?[\"']?"
# Names of every node, and what was cut off in front of a dot.
_OF_NO_HOST: Final = re.compile(r"localhost.*|kubernetes|\d*", re.IGNORECASE)
_NODE_NAME: Final = "node-name"


def anonymized(evidence: Evidence) -> Evidence:
    """``evidence`` with every identity of the machine and its parts replaced.

    A host name that is a plain word, or short, is replaced only where a host's name stands: elsewhere it may mean
    another thing.
    """
    texts = [capture.text for capture in evidence.values()]
    names = {_name(match).partition(".")[0].lower() for text in texts for match in _named(text)}
    certified = {name.lower() for text in texts for name in _certified(text)}
    servers = {name.lower() for text in texts for name in _servers(text)} | {name for name in certified if "." in name}
    names |= certified - servers
    if _NODE_NAME in evidence:
        names.add(evidence[_NODE_NAME].text.strip().partition(".")[0].lower())
    serials = {match[2].lower() for text in texts for match in _SERIAL.finditer(text)}
    masks = _Masks(
        _anywhere(
            (name for name in names if not (_COMMON.fullmatch(name) or _OF_TOOLS.fullmatch(name))),
            r"(?:\.[a-z][\w-]*)*",
        ),
        _anywhere(filter(_LONG.fullmatch, serials), ""),
        _anywhere((name for name in servers if not _PUBLIC.fullmatch(name)), ""),
        _as_host(name for name in names if not _OF_NO_HOST.fullmatch(name)),
    )
    masked = {key: _capture(capture, masks.text) for key, capture in sorted(evidence.items())}
    if name := evidence.get(_NODE_NAME):
        masked[_NODE_NAME] = replace(name, data=masks.host(name.text.strip()).encode() + b"\n" if name.data else b"")
    return masked


def _named(text: str) -> Iterable[re.Match[str]]:
    yield from _BEFORE_MESSAGE.finditer(text)
    yield from _SAID.finditer(text)


def _servers(text: str) -> Iterable[str]:
    """The names with a domain that stand in addresses, or where only a server's stands."""
    yield from (match["host"] for match in _SERVER.finditer(text))
    for match in _UNSCHEMED.finditer(text):
        yield from filter(None, match.groups())


def _certified(text: str) -> Iterable[str]:
    """The names that the certificate of k3s' server is to have."""
    for match in _CERTIFIED.finditer(text):
        yield from _CERTIFIED_NAME.findall(match["names"])


def _name(match: re.Match[str]) -> str:
    """The host's name in it, wherever it stands there."""
    found = match.groupdict()
    return found.get("row") or found.get("cloud") or match["said"]


def _anywhere(words: Iterable[str], tail: str) -> re.Pattern[str] | None:
    """Where any of ``words`` stands by itself, with ``tail`` behind it; None where there are none."""
    either = "|".join(map(re.escape, sorted(words, key=lambda word: (-len(word), word))))
    return re.compile(rf"(?<![\w-])(?:{either}){tail}(?![\w-])", re.IGNORECASE) if either else None


def _as_host(names: Iterable[str]) -> re.Pattern[str] | None:
    """Where any of ``names`` can be nothing but a host's; None where there are none."""
    either = "|".join(map(re.escape, sorted(names, key=lambda name: (-len(name), name))))
    if not either:
        return None
    ends = r"(?![a-z\d-])"
    return re.compile(
        rf"({_OF_NODE})((?:{either})(?:\.[a-z][a-z\d-]*)*){ends}|({_ADDRESSED_BY_NAME})({either}){ends}(?!\.\w)",
        re.IGNORECASE | re.MULTILINE,
    )


@dataclass(slots=True)
class _Masks:
    """The replacements given so far, each kind numbered by itself."""

    hosts: re.Pattern[str] | None
    serials: re.Pattern[str] | None
    servers: re.Pattern[str] | None
    places: re.Pattern[str] | None
    given: dict[str, dict[str, int]] = field(default_factory=dict)

    def text(self, value: str) -> str:
        """``value``, masked."""
        value = _UUID.sub(self._uuid, value)
        value = _MAC.sub(self._mac, value)
        value = _NUMBER.sub(self._numbered, value)
        value = _USER.sub(lambda match: match[1] + self._user(match[2]), value)
        value = _SERIAL.sub(lambda match: match[1] + self._serial(match[2]), value)
        value = _BEFORE_MESSAGE.sub(lambda match: match[1] + self.host(match[2]), value)
        value = _SAID.sub(lambda match: (match[1] or "") + self.host(_name(match)), value)
        value = self.places.sub(self._placed, value) if self.places else value
        if self.serials:
            value = self.serials.sub(lambda match: self._serial(match[0]), value)
        if self.servers:
            value = self.servers.sub(lambda match: f"server-{self._number('server', match[0])}.example.com", value)
        value = _IPV4.sub(self._ipv4, value)
        value = _IPV6.sub(self._ipv6, value)
        return self.hosts.sub(lambda match: self.host(match[0]), value) if self.hosts else value

    def _ipv4(self, match: re.Match[str]) -> str:
        address = _ip(match[0])
        is_own = address is not None and (address.is_private or address in _OF_CARRIERS)
        if address is None or not (is_own or _ADDRESSED.search(match.string, 0, match.start())):
            return match[0]
        if address in _OF_NOBODY or address.is_loopback or address.is_link_local or address.packed[0] in {0, 255}:
            return match[0]
        return str(_OF_NOBODY[self._number("ipv4", match[0])])

    def _ipv6(self, match: re.Match[str]) -> str:
        address = _ip(match[0])
        if address is None or address in _OF_NO_NETWORK or address.is_loopback or address.is_link_local:
            return match[0]
        return str(_OF_NO_NETWORK[self._number("ipv6", str(address))])

    def host(self, name: str) -> str:
        """What stands for the host ``name``, with or without its domain."""
        is_kept = re.fullmatch(r"host-\d+", name) or _OF_TOOLS.fullmatch(name)
        return name if is_kept else f"host-{self._number('host', name.partition('.')[0])}"

    def _placed(self, match: re.Match[str]) -> str:
        before, name = (group for group in match.groups() if group is not None)
        return before + self.host(name)

    def _user(self, name: str) -> str:
        return (
            name
            if re.fullmatch(r"user-\d+|root|nobody|ubuntu|debian|core|runner", name)
            else f"user-{self._number('user', name)}"
        )

    def _serial(self, value: str) -> str:
        return f"serial-{self._number('serial', value)}"

    def _uuid(self, match: re.Match[str]) -> str:
        sign = match[1]
        parts = ("00000000", "0000", "4000", "8000", f"{self._number('uuid', match[0].replace(sign, '-')):012x}")
        return sign.join(parts)

    def _mac(self, match: re.Match[str]) -> str:
        before, value = (group for group in match.groups() if group is not None)
        sign = value[2] if len(value) == 17 else ""
        # The same address, however it is written.
        return before + sign.join(_as_mac(self._number("mac", re.sub("[:-]", "", value))))

    def _numbered(self, match: re.Match[str]) -> str:
        before, value = (group for group in match.groups() if group is not None)
        digits = iter(f"{self._number('number', re.sub('[:-]', '', value)):x}".rjust(sum(map(str.isalnum, value)), "0"))
        return before + "".join(next(digits) if char.isalnum() else char for char in value)

    def _number(self, kind: str, value: str) -> int:
        known = self.given.setdefault(kind, {})
        return known.setdefault(value.lower(), len(known) + 1)


# The addresses of tests and of documentation (RFC 2544, RFC 3849): they lead nowhere.
_OF_NOBODY: Final = ip_network("198.18.0.0/15")
_OF_CARRIERS: Final = ip_network("100.64.0.0/10")
_OF_NO_NETWORK: Final = ip_network("2001:db8::/32")


def _ip(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None


def _as_mac(number: int) -> list[str]:
    return re.findall("..", f"02{number:010x}")  # 02: an address of nobody's register


def _capture(capture: Capture, mask: Callable[[str], str]) -> Capture:
    found = _found(capture)
    if found is None:
        data = mask(capture.data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
    else:
        data = encode_found(_masked(one, mask) for one in found)
    return replace(capture, source=mask(capture.source), data=data, error=mask(capture.error))


def _found(capture: Capture) -> tuple[Found, ...] | None:
    try:
        return decode_found(capture.data) if "*" in capture.source else None
    except (ValueError, KeyError, TypeError):
        return None


def _masked(found: Found, mask: Callable[[str], str]) -> Found:
    data = found.data and mask(found.data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
    return replace(found, path=mask(found.path), link=found.link and mask(found.link), data=data)
