/* A stand-in for libnvidia-ml.so.1, for nodes without a GPU: signatures as in nvml.h, answers from the environment.
 *
 * FAKE_NVML_GPUS    how many GPUs there are (default 1)
 * FAKE_NVML_FAULTS  FUNCTION[@INDEX]=CODE[,…]: that function (for that GPU) returns CODE, or never when CODE is "hang",
 *                   or bytes that are no text when it is "garbage", or kills the process when it is "abort"
 * FAKE_NVML_DRIVER  the driver's version (default 580.178.04)
 * FAKE_NVML_MIG     a file that holds how MIG divides the GPUs, each an H100 80GB; without it MIG is off, and on after a
 *                   reset. Lines: "gpu INDEX MODE PENDING", and "instance INDEX PROFILE START SLICES,…" with the slices
 *                   of its compute instances, or "-". Calls write it; a "reboot" takes the instances away (fakes/mig.py).
 * FAKE_NVML_MIG_LATE     a mode that is set stays pending
 * FAKE_NVML_CLIENTS      INDEX:PID[,…]: processes on the GPUs; their instances cannot be destroyed
 *
 * It proves how gpunode reads NVML's answers. It proves nothing about NVIDIA's driver: tests/gpu does.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GARBAGE (-7)
#define NOT_SUPPORTED 3
typedef struct { int index; } device_t;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci_t;
typedef struct { unsigned long long total, free, used; } memory_t;

static device_t devices[64];

static int gpus(void) { const char *n = getenv("FAKE_NVML_GPUS"); return n ? atoi(n) : 1; }
static const char *driver(void) { const char *v = getenv("FAKE_NVML_DRIVER"); return v ? v : "580.178.04"; }

static int fault(const char *function, int index)
{
    const char *given = getenv("FAKE_NVML_FAULTS");
    char all[4096], here[128], *next, *one;
    if (!given) return 0;
    snprintf(all, sizeof all, "%s", given);
    snprintf(here, sizeof here, "%s@%d", function, index);
    for (one = strtok_r(all, ",", &next); one; one = strtok_r(NULL, ",", &next)) {
        char *code = strchr(one, '=');
        if (!code) continue;
        *code++ = 0;
        if (strcmp(one, function) && strcmp(one, here)) continue;
        if (!strcmp(code, "hang")) for (;;) pause();
        if (!strcmp(code, "abort")) abort();
        if (!strcmp(code, "garbage")) return GARBAGE;
        return atoi(code);
    }
    return 0;
}

static int text(const char *function, int index, char *out, unsigned size, const char *value)
{
    int code = fault(function, index);
    if (code == GARBAGE) { snprintf(out, size, "\xff\xfe\xff"); return 0; }
    if (!code) snprintf(out, size, "%s", value);
    return code;
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; puts("a line that a library prints"); fflush(stdout); return fault("nvmlInitWithFlags", -1); }
int nvmlInit_v2(void) { return fault("nvmlInitWithFlags", -1); }
int nvmlShutdown(void) { return fault("nvmlShutdown", -1); }
const char *nvmlErrorString(int code) { static char s[64]; snprintf(s, sizeof s, "stand-in error %d", code); return s; }

int nvmlSystemGetDriverVersion(char *out, unsigned size) { return text("nvmlSystemGetDriverVersion", -1, out, size, driver()); }
int nvmlSystemGetNVMLVersion(char *out, unsigned size)
{
    char version[96];
    snprintf(version, sizeof version, "13.%s", driver());
    return text("nvmlSystemGetNVMLVersion", -1, out, size, version);
}
int nvmlSystemGetCudaDriverVersion_v2(int *out)
{
    int code = fault("nvmlSystemGetCudaDriverVersion_v2", -1);
    if (!code) *out = 13000;
    return code;
}
int nvmlDeviceGetCount_v2(unsigned *out)
{
    int code = fault("nvmlDeviceGetCount_v2", -1);
    if (!code) *out = gpus();
    return code;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t **out)
{
    int code = fault("nvmlDeviceGetHandleByIndex_v2", index);
    if (code) return code;
    if ((int)index >= gpus() || index >= 64) return 2;
    devices[index].index = index;
    *out = &devices[index];
    return 0;
}
int nvmlDeviceGetName(device_t *d, char *out, unsigned size) { return text("nvmlDeviceGetName", d->index, out, size, "NVIDIA H100 80GB HBM3"); }
int nvmlDeviceGetUUID(device_t *d, char *out, unsigned size)
{
    char uuid[64];
    snprintf(uuid, sizeof uuid, "GPU-00000000-0000-0000-0000-%012x", d->index);
    return text("nvmlDeviceGetUUID", d->index, out, size, uuid);
}
int nvmlDeviceGetPciInfo_v3(device_t *d, pci_t *out)
{
    int code = fault("nvmlDeviceGetPciInfo_v3", d->index);
    if (code) return code;
    memset(out, 0, sizeof *out);
    out->bus = 0x0f + d->index;
    out->id = 0x233010de;
    snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", out->bus);
    return 0;
}
int nvmlDeviceGetMemoryInfo(device_t *d, memory_t *out)
{
    int code = fault("nvmlDeviceGetMemoryInfo", d->index);
    if (!code) { out->total = 81559ULL << 20; out->used = 1 << 20; out->free = out->total - out->used; }
    return code;
}
int nvmlDeviceGetPersistenceMode(device_t *d, int *out)
{
    int code = fault("nvmlDeviceGetPersistenceMode", d->index);
    if (!code) *out = 1;
    return code;
}
static int pair(const char *function, device_t *d, int now, int later, int *a, int *b)
{
    int code = fault(function, d->index);
    if (!code) { *a = now; *b = later; }
    return code;
}
int nvmlDeviceGetEccMode(device_t *d, int *now, int *later) { return pair("nvmlDeviceGetEccMode", d, 1, 0, now, later); }

/* nvml.h: nvmlGpuFabricInfo_v2_t. The state is FAKE_NVML_FABRIC, else 0: not supported; its status is a fault of its own. */
typedef struct { unsigned version; unsigned char cluster[16]; int status; unsigned clique, state, health; } fabric_t;
int nvmlDeviceGetGpuFabricInfoV(device_t *d, fabric_t *out)
{
    int code = fault("nvmlDeviceGetGpuFabricInfoV", d->index);
    const char *state = getenv("FAKE_NVML_FABRIC");
    if (code) return code;
    if (out->version != 0x02000024) return 25; /* NVML_ERROR_ARGUMENT_VERSION_MISMATCH */
    out->state = state ? (unsigned)atoi(state) : 0;
    out->status = fault("fabric-status", d->index);
    return 0;
}

#include "mig.h"
int nvmlDeviceGetCudaComputeCapability(device_t *d, int *major, int *minor) { return pair("nvmlDeviceGetCudaComputeCapability", d, 9, 0, major, minor); }
