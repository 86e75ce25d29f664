/* A stand-in for nvidia-smi: prints the UUIDs that libnvidia-ml.so.1 lists, as
 * `nvidia-smi --query-gpu=uuid --format=csv,noheader` does; dynamically linked, and NVML loaded at run time, as in the
 * real one. Ends with NVML's error. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW), *device;
    unsigned i, count;
    char uuid[96];
    int code;
    if (argc != 3 || strcmp(argv[1], "--query-gpu=uuid") || strcmp(argv[2], "--format=csv,noheader")) return 2;
    if (!nvml) { puts("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system."); return 12; }
    if ((code = ((int (*)(void))dlsym(nvml, "nvmlInit_v2"))())) return code;
    ((int (*)(unsigned *))dlsym(nvml, "nvmlDeviceGetCount_v2"))(&count);
    for (i = 0; i < count; i++) {
        ((int (*)(unsigned, void **))dlsym(nvml, "nvmlDeviceGetHandleByIndex_v2"))(i, &device);
        code = ((int (*)(void *, char *, unsigned))dlsym(nvml, "nvmlDeviceGetUUID"))(device, uuid, sizeof uuid);
        if (code) return code;
        puts(uuid);
    }
    return 0;
}
