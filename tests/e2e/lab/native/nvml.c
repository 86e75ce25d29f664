/* The least NVML that tells a driver that is loaded from one that is not: /run/lab-gpus holds the number of GPUs. */
#include <stdio.h>
#include <string.h>

#define OK 0
#define INVALID_ARGUMENT 2
#define DRIVER_NOT_LOADED 9

struct memory { unsigned long long total, free, used; };

static int gpus(void)
{
	int count = -1;
	FILE *file = fopen("/run/lab-gpus", "r");

	if (file) {
		if (fscanf(file, "%d", &count) != 1)
			count = -1;
		fclose(file);
	}
	return count;
}

static int put(char *buffer, unsigned length, const char *text)
{
	snprintf(buffer, length, "%s", text);
	return OK;
}

int nvmlInit_v2(void) { return gpus() < 0 ? DRIVER_NOT_LOADED : OK; }
int nvmlInitWithFlags(unsigned flags) { (void)flags; return nvmlInit_v2(); }
int nvmlShutdown(void) { return OK; }
int nvmlSystemGetDriverVersion(char *buffer, unsigned length) { return put(buffer, length, VERSION); }
int nvmlSystemGetNVMLVersion(char *buffer, unsigned length) { return put(buffer, length, "13." VERSION); }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 13000; return OK; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = gpus(); return OK; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
	if ((int)index >= gpus())
		return INVALID_ARGUMENT;
	*device = (void *)(long)(index + 1);
	return OK;
}

int nvmlDeviceGetName(void *device, char *buffer, unsigned length)
{
	(void)device;
	return put(buffer, length, "NVIDIA Lab GPU");
}

int nvmlDeviceGetUUID(void *device, char *buffer, unsigned length)
{
	snprintf(buffer, length, "GPU-00000000-0000-0000-0000-%012lx", (long)device);
	return OK;
}

int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory)
{
	(void)device;
	*memory = (struct memory){8ULL << 30, 8ULL << 30, 0};
	return OK;
}

int nvmlDeviceGetPersistenceMode(void *device, int *mode) { (void)device; *mode = 1; return OK; }

const char *nvmlErrorString(int result)
{
	switch (result) {
	case OK: return "Success";
	case INVALID_ARGUMENT: return "Invalid Argument";
	case DRIVER_NOT_LOADED: return "Driver Not Loaded";
	default: return "Unknown Error";
	}
}
