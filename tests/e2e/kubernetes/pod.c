/* The program of the lab's images; its argument says for which it stands. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* As in the node: the folders that the device plugin's manifest mounts. */
#define PLUGINS "/var/lib/kubelet/device-plugins"
#define CDI "/var/run/cdi"
/* The driver's libraries stand for this file; a container has it by CDI or by NVIDIA's runtime. */
#define DRIVER "/lab/driver"

static void end(int number)
{
	(void)number;
	_exit(0);
}

static int compute(void)
{
	const char *gpu = getenv("LAB_GPU"), *way = getenv("LAB_WAY");

	puts("[Vector addition of 50000 elements]");
	if (!gpu || !way || access(DRIVER, R_OK)) {
		fputs("Failed to allocate device vector A (error code no CUDA-capable device is detected)!\n", stderr);
		return 1;
	}
	printf("on %s by %s\nTest PASSED\nDone\n", gpu, way);
	return 0;
}

static void copy(const char *from, const char *to)
{
	char text[65536];
	FILE *source = fopen(from, "r"), *target = source ? fopen(to, "w") : NULL;

	if (target)
		fwrite(text, 1, fread(text, 1, sizeof text, source), target);
	if (source)
		fclose(source);
	if (target)
		fclose(target);
}

/*
 * The stand-in for the plugin itself runs outside of the node, as long as this pod has the driver. It reads the
 * configuration that is mounted here; its CDI specification is of the driver below /driver-root.
 */
static void beat(void)
{
	const char *config = PLUGINS "/lab-config.yaml", *cdi = CDI "/k8s.device-plugin.nvidia.com-gpu.json";

	/* Of a former pod. */
	for (unlink(config); !access(DRIVER, R_OK); usleep(200000)) {
		if (access(config, F_OK))
			copy("/config/config.yaml", config);
		if (access(cdi, F_OK) && !access("/driver-root/usr/lib/lab-driver", R_OK))
			copy(PLUGINS "/lab-cdi.json", cdi);
		copy("/dev/null", PLUGINS "/lab-heartbeat");
	}
}

int main(int argc, char **argv)
{
	/* The first process of a container gets only the signals that it handles. */
	signal(SIGTERM, end);
	signal(SIGINT, end);
	if (argc > 1 && !strcmp(argv[1], "compute"))
		return compute();
	if (argc > 1 && !strcmp(argv[1], "beat")) {
		beat();
		return 1;
	}
	for (;;)
		pause();
}
