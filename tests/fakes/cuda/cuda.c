/* A stand-in for libcuda.so.1, for nodes without a GPU: signatures as in cuda.h, "device" memory on the heap, and a
 * launch that adds on the CPU what the kernel's parameters point to, as many elements as the grid has threads.
 *
 * FAKE_CUDA_GPUS    how many GPUs there are (default 1)
 * FAKE_CUDA_FAULTS  FUNCTION[@INDEX]=CODE[,…]: that function (for that GPU) returns CODE, never when CODE is "hang",
 *                   spoils one element when it is "wrong", computes nothing when it is "idle"
 * FAKE_CUDA_LEAKS   a file that gets what is still allocated, a line after each context's end
 *
 * It proves how gpunode calls libcuda. It does not compile PTX and proves nothing about a GPU: the real ptxas does the
 * one (tests/conformance/nvml/test_ptx.py), tests/gpu the other.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef uint64_t ptr_t;
#define WRONG (-1)
#define IDLE (-2)
#define INVALID_VALUE 1

static int initialised, current = -1, blocks, modules, contexts;

static int gpus(void) { const char *n = getenv("FAKE_CUDA_GPUS"); return n ? atoi(n) : 1; }

static int fault(const char *function, int index)
{
    const char *given = getenv("FAKE_CUDA_FAULTS");
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
        if (!strcmp(code, "wrong")) return WRONG;
        if (!strcmp(code, "idle")) return IDLE;
        return atoi(code);
    }
    return 0;
}
#define CHECK(index) do { int code_ = fault(__func__, index); if (code_) return code_; } while (0)

int cuGetErrorName(int code, const char **out)
{
    switch (code) {
    case 100: *out = "CUDA_ERROR_NO_DEVICE"; return 0;
    case 218: *out = "CUDA_ERROR_INVALID_PTX"; return 0;
    case 719: *out = "CUDA_ERROR_LAUNCH_FAILED"; return 0;
    default: *out = NULL; return INVALID_VALUE;
    }
}
int cuGetErrorString(int code, const char **out)
{
    switch (code) {
    case 100: *out = "no CUDA-capable device is detected"; return 0;
    case 218: *out = "a PTX JIT compilation failed"; return 0;
    case 719: *out = "unspecified launch failure"; return 0;
    default: *out = NULL; return INVALID_VALUE;
    }
}
int cuInit(unsigned flags)
{
    CHECK(-1);
    if (getenv("CUDA_VISIBLE_DEVICES")) return 101;
    initialised = 1;
    return flags ? INVALID_VALUE : 0;
}
int cuDeviceGetCount(int *out) { CHECK(-1); *out = gpus(); return initialised ? 0 : 3; }
int cuDeviceGet(int *out, int index) { CHECK(index); *out = index; return index < gpus() ? 0 : 101; }
int cuDeviceGetName(char *out, int size, int device) { CHECK(device); snprintf(out, size, "NVIDIA H100 80GB HBM3"); return 0; }
int cuDeviceGetUuid_v2(unsigned char *out, int device) { CHECK(device); memset(out, 0, 16); out[15] = device; return 0; }

int cuCtxCreate_v2(void **out, unsigned flags, int device)
{
    CHECK(device);
    if (flags || current >= 0) return INVALID_VALUE;
    current = device;
    contexts++;
    *out = (void *)(uintptr_t)(0x1000 + device);
    return 0;
}
int cuCtxDestroy_v2(void *context)
{
    const char *leaks = getenv("FAKE_CUDA_LEAKS");
    CHECK(current);
    if (context != (void *)(uintptr_t)(0x1000 + current)) return 201;
    contexts--;
    if (leaks) {
        FILE *file = fopen(leaks, "a");
        fprintf(file, "gpu %d: %d blocks, %d modules, %d contexts\n", current, blocks, modules, contexts);
        fclose(file);
    }
    current = -1;
    return 0;
}
int cuModuleLoadDataEx(void **out, const char *ptx, unsigned count, int *options, void **values)
{
    int code = fault(__func__, current), i;
    if (code == 218)
        for (i = 0; i < (int)count; i++)
            if (options[i] == 5) strcpy(values[i], "ptxas fatal : stand-in says no");
    if (code) return code;
    if (current < 0) return 201;
    if (strncmp(ptx, ".version ", 9) || !strstr(ptx, ".visible .entry vector_add(")) return 218;
    modules++;
    *out = (void *)0x2000;
    return 0;
}
int cuModuleUnload(void *module) { CHECK(current); modules--; return module == (void *)0x2000 ? 0 : INVALID_VALUE; }
int cuModuleGetFunction(void **out, void *module, const char *name)
{
    CHECK(current);
    if (module != (void *)0x2000 || strcmp(name, "vector_add")) return 500;
    *out = (void *)0x3000;
    return 0;
}
int cuMemAlloc_v2(ptr_t *out, size_t size) { CHECK(current); *out = (ptr_t)(uintptr_t)malloc(size); blocks++; return 0; }
int cuMemFree_v2(ptr_t block) { CHECK(current); free((void *)(uintptr_t)block); blocks--; return 0; }
int cuMemcpyHtoD_v2(ptr_t to, const void *from, size_t size) { CHECK(current); memcpy((void *)(uintptr_t)to, from, size); return 0; }
int cuMemcpyDtoH_v2(void *to, ptr_t from, size_t size) { CHECK(current); memcpy(to, (void *)(uintptr_t)from, size); return 0; }
int cuMemsetD32_v2(ptr_t to, unsigned value, size_t count)
{
    unsigned *cells = (void *)(uintptr_t)to;
    CHECK(current);
    while (count--) *cells++ = value;
    return 0;
}
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **parameters, void **extra)
{
    int code = fault(__func__, current);
    float *a, *b, *sum;
    uint32_t i, count = *(uint32_t *)parameters[3], threads = gx * gy * gz * bx * by * bz;
    if (code > 0) return code;
    if (function != (void *)0x3000 || shared || stream || extra || bx > 1024) return INVALID_VALUE;
    if (code == IDLE) return 0;
    a = *(float **)parameters[0];
    b = *(float **)parameters[1];
    sum = *(float **)parameters[2];
    for (i = 0; i < count && i < threads; i++) sum[i] = a[i] + b[i];
    if (code == WRONG) sum[count / 3] += 1;
    return 0;
}
int cuCtxSynchronize(void) { CHECK(current); return 0; }
