"""Symptoms: failures with several possible causes, each in the wording of every program that reports it.

The wordings come from NVIDIA's driver (NVRM, NVML, nvidia-smi, DCGM), CUDA (its codes and names), PyTorch, JAX,
TensorFlow, vLLM, Ollama, FFmpeg, NCCL, libnvidia-container, docker, containerd, CRI-O, podman, Apptainer, Slurm with
Pyxis, the kubelet, the device plugin, HAMi, apt, dnf, zypper, DKMS and kmod. A cause lists its symptoms in
``Rule.symptoms``; evidence that no other cause shows is its decisive sign and is defined with it.
"""

from __future__ import annotations

from typing import Final

from gpunode.diagnoses import prose
from gpunode.diagnoses.evaluation import is_examined_by_gpunode
from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.signs import all_of, any_line, any_of, custom_sign, message_line, predicate, unless
from gpunode.diagnoses.snapshot import Snapshot, cite
from gpunode.diagnoses.views import driver, in_container, kubernetes_nodes, pci, system
from gpunode.facts.items import COMMAND_NOT_FOUND_WORDS
from gpunode.facts.patterns import Pattern

# Messages of nvidia-smi and NVML.

NO_GPU_ON_BUS: Final = predicate(lambda snapshot: pci.has_gpu(snapshot) is False, "no NVIDIA GPU is on the bus")
DRIVER_WORKS: Final = predicate(driver.works, "nvidia-smi answers")
CONTAINER_WORKS: Final = custom_sign(driver.container_successes)
# Words that programs use for failures.
FAILURE_WORDS: Final = (
    r"errors?|exception|fail(?:s|ed|ure)?|fatal|cannot|can't|could(?: not|n't)|unable|not (?:found|started|loaded)"
    r"|mismatch|denied|refused|unknown|invalid|missing|lost|insufficient|no such"
)
_ANY_FAILURE_WORD: Final = Pattern(
    rf"(?i)\b(?:{FAILURE_WORDS}|fail\w*|not working|pending|crashloop\w*|false|out of memory|hangs?|slow(?!down)\w*"
    r"|stuck|do(?:es)?(?: not|n't)|won't|problem|why|panic\w*|crash\w*|broken?|freez\w*|wrong|rejected|killed"
    r"|(?:slowdown|brake)[ \t]*: active|segfault\w*|timed out|disappear\w*|unresponsive"
    r"|not (?:detected|recogni[sz]ed|visible|available))\b"
)
# Counters of zero, switches, headings and denials contain these words on a healthy node.
_NORMAL_STATE: Final = Pattern(
    r"(?i)^[ \t|]*(?:link \d+: )?[\w ().,/-]{2,60}[ \t]*[:|=][ \t]*"
    r"(?:0|no|none|n/a|(?:en|dis)abled|not active|(?-i:false))[ \t|]*$"
    r"|^[ \t]*(?:\w+ )?errors?[ \t]*$|^[a-z_.]+(?: ?\[\w+\])?(?:, ?[a-z_.]+(?: ?\[\w+\])?)+$"
    r"|\b(?:0|no|zero|without(?: any)?) (?:[\w-]+ ){0,3}(?:errors?|failures?|problems?)\b"
    r"|\bignoring error\b[^\n]*"
    r"|\bis not installed, so not removed|\bis (?:it|this|that) a problem\b"
    r"|module verification failed: signature and/or required key missing"
    r"|\blevel=(?:info|warning) [^\n]*|^(?:WARN|INFO)\[\d+\] [^\n]*"
)
_OTHER_TIME_OR_PLACE: Final = Pattern(
    r"(?i)^>|\byesterday\b|\b(?:weeks?|months?|years?) ago\b|\b(?:colleagues?|another (?:data|machine|node|host))\b"
)
_QUOTED_WORDS: Final = Pattern(r"[\"“„«][^\"“”„«»]*[\"”“»]")


def _mentions_failure(node: Snapshot) -> bool:
    items = (item for item in node.items if _ANY_FAILURE_WORD.may_match(item.lowered))
    matches = ((item, match) for item in items for match in _ANY_FAILURE_WORD.finditer(item.text))
    return any(_reports_failure(node, cite(item, item.line_number_at(match.start()))) for item, match in matches)


def _reports_failure(node: Snapshot, line: Citation) -> bool:
    said = _NORMAL_STATE.sub("", line.line)
    if _OTHER_TIME_OR_PLACE.search(said) and prose.cites_prose(node, line):
        said = "" if said.startswith(">") else _QUOTED_WORDS.sub("", said)
    return _ANY_FAILURE_WORD.search(said) is not None


FAILURE_MENTIONED: Final = predicate(_mentions_failure, "the report mentions a failure")
# Rows of nvidia-smi's reports, and a program that computes.
_SUCCESS_LINE: Final = Pattern(
    r"(?m)^[ \t]{4,}[A-Z][\w ().-]{2,40}[ \t]+: (?:\d|(?:En|Dis)abled|(?:Not )?Active|No$|Yes$|Completed)"
    r"|^GPU \d+: [^\n]*UUID|\bis_available\(\)(?: is)?[^\n]{0,8}\bTrue\b"
)
# One of these is in every such line, and in few long logs.
_SUCCESS_PARTS: Final = (" : ", "\t: ", "UUID", "is_available()")


def _shows_success(node: Snapshot) -> bool:
    is_offered = any(offer.value for one in node.view(kubernetes_nodes.kube_nodes) for offer in one.available.values())
    texts = (item.text for item in node.items if any(part in item.text for part in _SUCCESS_PARTS))
    return driver.works(node) or is_offered or any(map(_SUCCESS_LINE.search, texts))


NOTHING_FAILS: Final = predicate(
    lambda node: not node.view(FAILURE_MENTIONED) and _shows_success(node), "a GPU works, and nothing shown fails"
)
MODULE_LOADED: Final = predicate(driver.is_loaded, "NVIDIA's module is loaded")
IN_CONTAINER: Final = custom_sign(in_container.container_marks)
DRIVER_FROM_PLATFORM: Final = predicate(system.has_external_driver, "Windows or the Jetson's image provides the driver")
# gpunode runs no nvidia-smi on such a node, since that could load the module.
DRIVER_NOT_LOADED: Final = unless(
    all_of(
        custom_sign(driver.not_loaded_lines),
        custom_sign(driver.installed_lines),
        predicate(is_examined_by_gpunode, "gpunode examined the node"),
    ),
    DRIVER_FROM_PLATFORM,
)
_NO_DRIVER_MESSAGE: Final = message_line(
    r"couldn.t communicate with the NVIDIA driver|[Dd]river [Nn]ot [Ll]oaded|ERROR_DRIVER_NOT_LOADED"
    r"|(?:nvidia|NVIDIA) (?:kernel )?(?:module|driver) (?:is not|isn't|was not|not) (?:loaded|running)"
    r"|[Nn]o NVIDIA (?:kernel )?driver (?:is )?(?:loaded|found)|[Ff]ailed to load the NVIDIA kernel module"
    r"|Found no NVIDIA driver on your system|kernel driver does not appear to be running"
    r"|forward compatibility was attempted"
    r"|could not find any NVIDIA devices|[Nn]o NVIDIA GPU drivers? (?:were )?found"
    r"|driver/nvidia/version: [Nn]o such file"
    # DCGM, nvidia-settings and X.
    r"|NVML doesn.t exist on this system|Unable to load info from any available system"
    r"|Failed to initialize the NVIDIA kernel module"
    # RPM Fusion's nvidia-fallback.service.
    r"|NVIDIA kernel module missing\. Falling back"
)
NO_DRIVER: Final = any_of(_NO_DRIVER_MESSAGE, DRIVER_NOT_LOADED)
_NO_MODULE_MESSAGE: Final = message_line(
    r"(?:[Mm]odule|module by name) [‘'\"]?nvidia[\w-]*[’'\"]? not found|module not found: ['‘\"]?nvidia"
    r"|modinfo: ERROR: Module (?:alias )?nvidia|modprobe: (?:FATAL|ERROR|致命错误|致命錯誤)\s*[:：][^\n]{0,120}nvidia"
    r"|could not insert ['‘\"]?nvidia|Failed to (?:insert"
    r"|find) module ['‘]?nvidia|Unable to load the kernel module ['‘\"]?nvidia"
)
# The module may have loaded later, after the module that exports the symbol.
NO_MODULE: Final = any_of(_NO_MODULE_MESSAGE, unless(message_line(r"\bnvidia: Unknown symbol "), DRIVER_WORKS))
NO_DEVICES: Final = message_line(
    r"(?i)No devices (?:were )?found|No NVIDIA devices|NVML_ERROR_(?:NOT_FOUND|NO_DEVICES)|no supported devices"
    r"|No supported GPUs"
    # Slurm and nvidia-persistenced.
    r"|gres\.conf file /dev/+nvidia|Failed to query NVIDIA devices"
)
ADAPTER_INIT_FAILED: Final = message_line(
    r"RmInitAdapter failed|rm_init_adapter failed|probe (?:of [0-9a-f:.]+|with driver nvidia) failed with error"
    r"|failed to (?:initialize|init) adapter"
    r"|NVIDIA probe routine failed|None of the NVIDIA devices were (?:probed|initialized)"
)
INIT_FAILED_22_56: Final = message_line(r"RmInitAdapter failed! \(0x22:0x56")
DRIVER_MISMATCH: Final = message_line(
    r"[Dd]river/library version mismatch|API mismatch: the|LIB_RM_VERSION_MISMATCH|LibRmVersionMismatch"
    r"|nvidia-modeset: Version mismatch|does not match DSO version"
)
NO_NVML_LIBRARY: Final = message_line(
    r"libnvidia-ml\.so(?:\.1)?\b[^\n]{0,60}(?:cannot open|not found|[Nn]o such file)|ERROR_LIBRARY_NOT_FOUND"
    r"|couldn.t find libnvidia-ml|(?:load|find|open) (?:the )?NVML(?: [Ll]ibrary)?\b|NVML Shared Library Not Found"
    rf"|nvidia-smi[\"'’:： ]{{0,3}}\s*(?:{COMMAND_NOT_FOUND_WORDS}|not found)|not found: nvidia-smi"
    r"|exec: \"nvidia-smi\""
    # Apptainer, DCGM and FFmpeg.
    r"|[Cc]ould not find any nv files|Cannot init NVML library|Cannot load lib(?:cuda|nvcuvid|nvidia-encode)\.so"
)
NVML_UNKNOWN: Final = message_line(
    r"(?i)NVML[^\n]{0,30}: Unknown Error|nvml error: unknown error|NVML[^\n]{0,20}\bERROR_UNKNOWN\b|NVML_ERROR_UNKNOWN"
    # PyTorch's, which do not tell the reason.
    r"|Can't initialize NVML|NVML_SUCCESS == r INTERNAL ASSERT FAILED"
)
GPU_LOST: Final = message_line(
    r"GPU is lost|Unable to determine the device handle|fallen off the bus|NVML_ERROR_GPU_IS_LOST"
    r"|bad register read: [^\n]{0,40}regvalue: 0xffffffff"
    # The last: removed while in use, by its bus or by somebody who unbinds it.
    r"|GPU has become inaccessible|remove (?:minor )?device [^\n]{0,20} with non-zero usage count"
    r"|GPU requires reset|\bERR!|Xid \([^)]*\): 79\b|No devices were found"
)
SMI_HANGS: Final = any_of(
    custom_sign(driver.unanswered_queries),
    message_line(
        r"(?i)nvidia-smi[^\n]{0,60}(?:hangs?\b|hung|stuck|timed? ?out|never returns|takes (?:minutes|\d+ ?(?:s|m)))"
        r"|^real\s+[1-9]\d*m|task nvidia-\w+:\d+ blocked for more than|stuck for \d+s! \[nvidia-"
    ),
)
GPU_RESET_REFUSED: Final = message_line(
    r"in use by another (?:client|process)|currently being used by one or more other processes"
    r"|Unable to reset (?:this )?GPU|could not be reset"
)
ANY_XID: Final = message_line(r"\bXid \(|\bXid[ :=]+\d{1,3}\b|NVRM: Xid|XID ?(?:error|[:=])?\s*\d{1,3}\b")

# Events that people report before the failure; they order suspects and prove nothing.

KERNEL_UPGRADED: Final = message_line(
    r"(?i)\b(?:after|since)\b[^\n.]{0,40}\bkernel\b[^\n.]{0,20}\b(?:updat|upgrad)"
    r"|\b(?:after|since) (?:updating|upgrading) (?:the |my |to (?:a |the )?)?(?:new |newer )?kernel\b"
    r"|\bkernel (?:was |got |has been |had been )?(?:updated|upgraded)\b"
)
REBOOT_HELPS: Final = message_line(
    r"(?i)\breboot(?:ing|ed)?\b(?: it| the \w+| once)?(?: then| always| usually)?"
    r" (?:fix(?:es|ed)|solve[sd]|help(?:s|ed)|cure[sd])\b"
    r"|\bworks?(?:ed)? (?:again |fine )?(?:only )?(?:after|with) (?:a |the |each |every )?reboot"
    r"|\b(?:if|when|after|once)\b[^\n.]{0,20}\breboot[^\n.]{0,40}\b(?:gone|works|disappears|disappeared|goes away)"
)
REBOOT_DID_NOT_HELP: Final = message_line(
    r"(?i)\breboot\w*\b[^\n.]{0,30}\b(?:(?:does|did|do)(?: not|n['’]t)|never) (?:help|fix|solve|change|cure)"
    r"|\breboot\w* (?:(?:in|to) )?(?:no|without|vain)\b"
    r"|\b(?:still|even|also|same)\b[^\n.]{0,20} after (?:\w+ ){0,2}reboot"
    r"|\breboot\w* (?:twice|several times|many times)\b"
)

# Messages of CUDA and software built on it.

CUDA_FINDS_NO_DEVICE: Final = message_line(
    r"(?i)no CUDA-capable device|CUDA_ERROR_NO_DEVICE|cudaErrorNoDevice|No CUDA GPUs are available|no cuda devices"
    r"|No visible GPU devices|No NVENC capable devices|No GPU/TPU found"
    r"|cudaGetDeviceCount[^\n]{0,60}\b(?:100|38)\b|(?:error|code)[^\n]{0,8}\b100\b[^\n]{0,40}device"
)
CUDA_UNAVAILABLE: Final = message_line(
    r"(?i)(?:cuda\.)?is_available\(\)[^\n]{0,40}False|CUDA (?:is )?not available|[Cc]ould not (?:find"
    r"|load) (?:the )?(?:cuda|CUDA)"
    r"|Torch not compiled with CUDA|list_physical_devices\('GPU'\)[^\n]{0,20}\[\]|GPU (?:will not be used"
    r"|not (?:found|detected))"
    r"|no (?:compatible )?GPUs? (?:were )?(?:discovered|detected|found)|(?:using|falling back to|library=) ?cpu\b"
    r"|^False$"
    # JAX, TensorFlow, vLLM and Ollama.
    r"|Unable to initialize backend 'cuda'|CUDA backend failed to initialize"
    r"|no supported devices found for platform CUDA"
    r"|Cannot dlopen some GPU libraries|Could not load dynamic library 'libcuda|Failed to infer device type"
    r"|No CUDA runtime is found|unable to load (?:cudart|nvcuda|CUDA management)"
)
CUDA_UNKNOWN: Final = message_line(
    r"CUDA_ERROR_UNKNOWN|cudaErrorUnknown|CUDA unknown error|(?:CUDA|cuda|cuInit|cuda\w+)[^\n]{0,80}unknown error"
    r"|(?:CUDA|cuda|cuInit|driver library)[^\n]{0,80}\b999\b|cudaGetDeviceCount returned 30"
)
CUDA_SYSTEM_NOT_READY: Final = message_line(
    r"cudaErrorSystemNotReady|CUDA_ERROR_SYSTEM_NOT_READY|system not yet initiali[sz]ed|(?:CUDA|cuda|cuInit"
    r"|\bcode\b|Error)[^\n]{0,60}\b802\b|^802$"
)
CUDA_DRIVER_COMBINATION_UNFIT: Final = message_line(
    r"unsupported display driver ?/ ?cuda driver combination|(?:[Ee]rror|[Cc]ode|returned|cuda\w*)\W{0,4}803\b|\(803 vs"
    r"|cudaErrorSystemDriverMismatch|CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"
)
CUDA_NOT_INITIALISED: Final = message_line(
    r"(?i)CUDA_ERROR_NOT_INITIALIZED|cudaErrorInitializationError|CUDA (?:driver )?initiali[sz]ation (?:failed|error)"
    r"|failed to initialize CUDA|cuInit[^\n]{0,60}(?:returned|failed|error|->)"
    r"|(?:driver library|cudart|nvcuda) init failure"
    r"|failed call to cuInit"
)
CUDA_TOO_NEW: Final = message_line(
    r"CUDA driver version is insufficient|cudaErrorInsufficientDriver|driver on your system is too old|cuda>=\d"
    r"|unsatisfied condition"
    r"|requires (?:a )?(?:newer )?(?:NVIDIA )?driver|was compiled with (?:CUDA|a newer)"
    r"|CUDA_ERROR_UNSUPPORTED_PTX_VERSION"
    r"|PTX was compiled with an unsupported toolchain|provided PTX"
    # Ollama and FFmpeg.
    r"|(?:init failure|cudaSetDevice err): 35\b|minimum required N[Vv]idia driver for nvenc|required nvenc API version"
)
NO_CUDA_KERNEL_IMAGE: Final = message_line(
    r"no kernel image is available|CUDA_ERROR_NO_BINARY_FOR_GPU|cudaErrorNoKernelImageForDevice"
    r"|is not compatible with the current"
    r"|invalid device function|sm_\d+ is not (?:compatible|supported)|not compiled for (?:this|the) (?:GPU|arch)"
)
CUDA_BUSY: Final = message_line(
    r"CUDA-capable device\(s\) is/are busy or unavailable|CUDA_ERROR_DEVICE_UNAVAILABLE"
    r"|cudaErrorDevicesUnavailable|all CUDA-capable devices are busy"
)
CUDA_PROGRAM_FAULT: Final = message_line(
    r"illegal memory access|unspecified launch failure|misaligned address|illegal instruction|device-side assert"
    r"|launch timed out"
    r"|CUDA_ERROR_(?:ILLEGAL|LAUNCH|MISALIGNED|ECC)\w*"
    r"|(?<![Zz]ero )(?<![Nn]o )(?<!\b0 )uncorrectable (?:ECC|NVLink) error"
    r"|cudaError(?:Illegal"
    r"|Launch|ECC)\w*"
)
NCCL_FAILS: Final = message_line(
    r"(?i)NCCL (?:WARN|error|failure)|ncclSystemError|ncclUnhandledCudaError|ncclInternalError|ncclRemoteError"
    r"|unhandled (?:cuda|system) error|ncclInvalid(?:Usage|Argument)|DistBackendError"
    r"|Watchdog caught collective|ProcessGroupNCCL[^\n]{0,60}(?:timeout|timed out|abort)"
)
GPU_SLOW: Final = message_line(
    # Neither the heading of nvidia-smi's throttle reasons, nor an inactive reason, nor the power cap of a busy GPU.
    r"(?i)slow(?:er|down)?\b(?! temp\b|\s*:\s*not active)|hangs?\b|stuck\b|timed? out"
    r"|low (?:bus ?)?bandwidth|low (?:utili[sz]ation|throughput)"
    r"|(?:slowdown|brake)\s*:\s*active\b|(?<!never )(?<!not )(?<!n't )(?<!no )throttl(?!e reasons\b)"
)

# Messages of builds, package managers and the kernel.

BUILD_FAILED: Final = message_line(
    r"[Bb]ad (?:return|exit) status for module build|Error! (?:Build|Bad)|[Ee]rror(?: while)? building"
    r"|Build of nvidia\S* failed"
    # Not of another program's Makefile.
    r"|make(?:\[\d\])?: \*\*\*(?! \[Makefile:\d+: (?!modules)[\w.-]+\] Error)"
    r"|[Cc]onsult \S*make\.log|Failed to (?:build|compile)|dkms (?:build|install"
    r"|autoinstall)[^\n]{0,60}fail"
    r"|kernel module \S+ failed to build|dkms: (?:running|added|build)"
    r"|nvidia(?:-\w+)*[/, ]+\d+\.[\d.]+[^\n]{0,60}: (?:added|broken)"
    r"|has not compiled successfully|nvidia\.ko was not created"
)
PACKAGES_BROKEN: Final = message_line(
    r"[Uu]nmet dependencies|held broken packages|dpkg: error|Sub-process /usr/bin/dpkg returned"
    r"|(?<!devmapper )not (?:fully )?configured(?! (?:correctly|properly))|Depends: "
    r"|Errors were encountered while processing|trying to overwrite|file conflicts?|conflicts with file"
    r"|nothing provides|Problem: "
    # In Chinese, German, French and Spanish.
    r"|未满足的依赖关系|处理软件包 [^\n]{1,80}时出错|在处理时有错误发生|unerfüllte Abhängigkeiten"
    r"|Fehler beim Bearbeiten des Paket"
    r"|Fehler traten auf beim Bearbeiten|dépendances non satisfaites|erreur de traitement du paquet"
    r"|dependencias incumplidas|error al procesar el paquete"
    r"|dpkg was interrupted|Could not get lock|is locked by|Transaction (?:test|check) error"
)
REPOSITORY_REFUSED: Final = message_line(
    r"NO_PUBKEY|is not signed|signatures? (?:couldn't|could not) be verified|GPG (?:error|check FAILED)|EXPKEYSIG"
    r"|Conflicting values set for option Signed-By"
    r"|repomd\.xml[^\n]{0,60}(?:signature|verification)|public key[^\n]{0,40}(?:not (?:installed|available)|missing)"
)
MODULE_KEY_REJECTED: Final = message_line(
    r"Key was rejected by service|Required key not available|[Ll]oading of (?:unsigned module|module with)"
    r"|Lockdown: [^\n]{0,40}module"
    r"|PKCS#7 signature not signed|signed kernel module failed to load"
    r"|Secure boot is enabled on this system, so|[Kk]ernel module(?: load error)?:? Operation not permitted"
    r"|could not insert \S*nvidia\S*: Operation not permitted"
)
PCIE_BUS_ERRORS: Final = message_line(
    r"AER: (?!enabled)|PCIe Bus Error|BadTLP|BadDLLP|Completion Timeout|RxErr|pcieport [^\n]{0,80}(?:error|down)"
    r"|PCI error|link (?:is )?down\b"
)
REGION_NOT_ASSIGNED: Final = message_line(
    r"BAR ?\d+[^\n]{0,40}(?:can't|no space|failed to) assign|is 0M @ 0x0|can't claim BAR|<unassigned>"
    r"|I/O regions? [^\n]{0,30}invalid|Failed to re-allocate BAR1|No address space to allocate resized BAR1"
    r"|^\s+(?:Region \d: )?Memory at <(?:ignored|unassigned)>|not enough MMIO|System resource conflict"
)

# Messages of container engines and the toolkit.

NO_DEVICE_DRIVER: Final = message_line(
    r"could not select device driver (?![\\\"'`]*cdi)"
    r"|unknown flag: --gpus|no known GPU vendor|failed to discover GPU vendor"
)
DRIVER_MISSING_IN_CONTAINER: Final = message_line(
    r"(?i)nvidia-smi\\?[\"']?: (?:(?:command |executable file )?not found|no such file or directory)"
    r"|NVIDIA Driver was not detected|Found no NVIDIA driver|CUDA driver version is insufficient"
    r"|no CUDA-capable device|driver volume is not mounted"
)
RUNTIME_UNKNOWN: Final = message_line(
    r"[Uu]nknow\w* (?:or invalid )?runtime(?: name| specified)?:? [\"'\\]*nvidia|no runtime for [\"'\\]*nvidia"
    r"|runtime [\"'\\]*nvidia[\"'\\]* (?:not found|is not)"
    r"|nvidia-container-runtime[^\n]{0,60}(?:not found|no such file)|RuntimeHandler [\"'\\]*nvidia"
    r"|runtime handler [\"'\\]*nvidia"
)
HOOK_FAILED: Final = message_line(
    # Not its name in a configuration, nor the name of the library's package and repository.
    r"nvidia-container-cli: (?!command not)"
    r"|nvidia-container-runtime-hook\b[^\n]{0,80}(?:error|fail|not found|no such|exit)"
    r"|nvidia-container-runtime: |libnvidia-container(?:\.so|: )|error running (?:prestart|createRuntime)? ?hook"
    r"|nvidia-ctk[^\n]{0,40}(?:error|fail)"
    r"|failed to create (?:shim task|NVIDIA Container Runtime)|error executing hook|98-nvidia\.sh exited"
)
# A container was started for a GPU that NVML does not list.
GPU_NOT_LISTED: Final = message_line(
    r"nvidia-container-cli(?:\.real)?: device error: (?:GPU-\S+|MIG-\S+|\d+): unknown device"
    r"|invalid allocation request for [^\n]{0,60}unknown device: (?:GPU|MIG)-"
)
# nvidia-ctk and the runtime, while they write a CDI specification; CUDA, for libnvidia-ptxjitcompiler.
DRIVER_LIBRARIES_NOT_FOUND: Final = message_line(
    r"failed to (?:get libraries for driver version|locate libcuda\.so\.\d)|PTX JIT compiler library not found"
    r"|CUDA_ERROR_JIT_COMPILER_NOT_FOUND"
)
CDI_UNRESOLVED: Final = message_line(
    r"unresolvable CDI devices?|failed to (?:inject|resolve) CDI|CDI device injection failed|[Cc]annot find CDI"
    r"|no such (?:CDI )?device|CDI (?:device|spec|kind)[^\n]{0,60}(?:not found|invalid|fail)"
    r"|setting up CDI|stat failed: |stat CDI host device"
)
CONTAINER_FAILED: Final = message_line(
    r"OCI runtime (?:create|exec) failed|failed to create (?:containerd task|shim)|CreateContainerError"
    r"|RunContainerError|FailedCreatePodSandBox"
    r"|StartError|failed to start container|Error response from daemon|container creation failed"
    r"|pyxis: (?:container start failed|couldn't start)|\bcrun: |unable to start container"
)
RUNTIME_DAEMON_DOWN: Final = message_line(
    r"unable to configure the Docker daemon|Cannot connect to the Docker daemon|docker\.service: (?:Failed"
    r"|Main process exited|Start request)"
    # A snapshotter that the host does not need is no failure.
    r"|failed to (?:start|load) (?:daemon|containerd|plugin(?! io\.containerd\.snapshotter))"
    r"|containerd\.service: Failed|crio\.service: Failed"
    r"|Failed to start (?:Docker|containerd|docker)"
    r"|Job for docker\.service failed"
)
ACCESS_DENIED: Final = message_line(
    r"[Pp]ermission denied|[Oo]peration not permitted|(?:[Ii]n|not have )sufficient [Pp]ermissions|avc: +denied"
    r"|NOT_PERMITTED"
)

# A setting for rootless engines: the toolkit then does not let a container open the GPU's device files.
TOOLKIT_CGROUPS_DISABLED: Final = any_line(r"^[ \t]*no-cgroups\s*=\s*true")

# Output of Kubernetes.

POD_PENDING: Final = message_line(
    r"Insufficient nvidia\.com/\S+|FailedScheduling|0/\d+ nodes are available|didn't match Pod's node affinity"
    r"|untolerated taint|Status:\s+Pending|CardInsufficient|no available node, all node scores"
)
NOT_ENOUGH_GPUS: Final = message_line(r"Insufficient nvidia\.com/\S+|Insufficient \S*gpu")
POD_REFUSED: Final = message_line(
    r"UnexpectedAdmissionError|Allocate failed|no healthy devices present|requested number of devices unavailable"
    r"|cannot allocate unhealthy devices|OutOfnvidia"
)
NO_GPUS_OFFERED: Final = any_of(
    # Not the row of requests and limits below "Allocated resources".
    message_line(r"nvidia\.com/gpu[\"': ]+[\"']?0[\"']?\b(?!\s+\d)"),
    message_line(
        r"No (?:NVIDIA )?devices found\. Waiting|Detected non-NVML platform|[Ii]ncompatible (?:strategy"
        r"|platform) detected"
        r"|could not detect NVIDIA"
    ),
)
# NVML's library was found in the container, and NVML itself fails (the names of its errors in go-nvml).
NVML_ITSELF_FAILS: Final = message_line(
    r"Failed to initialize NVML: ERROR_(?!LIBRARY_NOT_FOUND)\w", "kubernetes-log", "text"
)
PLUGIN_FAILS: Final = message_line(
    r"nvidia-device-plugin[^\n]{0,80}(?:CrashLoop|Error|Init:|0/1)|could not load NVML library|NVML not detected"
    r"|Failed to initialize NVML: (?:could not|ERROR_)"
    r"|If this is a GPU node, did you (?:configure|set)|unable to create plugin manager"
    r"|DCGM initialization error|^[ \t]*(?:Error: )?Failed to initialize NVML$"
    r"|error starting plugins|Incompatible platform|Back-off restarting failed container \S*nvidia-device-plugin"
)
OPERATOR_PODS_NOT_READY: Final = message_line(
    r"nvidia-(?:driver-daemonset|operator-validator|container-toolkit-daemonset"
    r"|cuda-validator)\S*\s[^\n]{0,80}(?:Init:|CrashLoop|Error|ImagePull|0/\d(?!\d*\s+Completed))"
    r"|driver-validation|toolkit-validation|chroot: failed to run command ['‘]nvidia-smi"
    r"|ImagePullBackOff|ErrImagePull|manifest unknown"
)

# State of links and the fabric.

NVLINKS_DOWN: Final = message_line(
    r"(?i)<inactive>|\blinks?\b[^\n]{0,20}\binactive|NVLink: Unable to retrieve|Link \d+: (?:Down|Off|<)"
    r"|nvlink[^\n]{0,40}(?:down|error|fail|inactive)"
)
FABRIC_FAILS: Final = message_line(
    r"[Ff]abric[ _-]?[Mm]anager[^\n]{0,100}(?:fail|error|not|n.t match|mismatch|stopp)"
    r"|nvidia-fabricmanager\.service: (?:Failed|Main process|Control)|[Ff]abric[^\n]{0,40}State\s*: In Progress"
    r"|^[ \t]*State\s+: In Progress|NV_ERR_NVLINK_FABRIC_NOT_READY"
    # Multicast through the switches, set up by the fabric manager.
    r"|transport/nvls\.cc[^\n]{0,60}Cuda failure 401"
)
