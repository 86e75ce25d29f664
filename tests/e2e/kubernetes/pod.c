/* The program of the lab's images; its argument says for which it stands. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* As in the node: the folder that the device plugin's manifest mounts. */
#define HEARTBEAT "/var/lib/kubelet/device-plugins/lab-heartbeat"

static void end(int number)
{
	(void)number;
	_exit(0);
}

static int compute(void)
{
	const char *devices = getenv("NVIDIA_VISIBLE_DEVICES");

	puts("[Vector addition of 50000 elements]");
	if (!devices || !*devices || !strcmp(devices, "void")) {
		fputs("Failed to allocate device vector A (error code no CUDA-capable device is detected)!\n", stderr);
		return 1;
	}
	printf("on %s\nTest PASSED\nDone\n", devices);
	return 0;
}

/* The stand-in for the plugin itself runs outside of the node, as long as this file is young. */
static void beat(void)
{
	for (;; usleep(200000)) {
		FILE *file = fopen(HEARTBEAT, "w");

		if (file)
			fclose(file);
	}
}

int main(int argc, char **argv)
{
	/* The first process of a container gets only the signals that it handles. */
	signal(SIGTERM, end);
	signal(SIGINT, end);
	if (argc > 1 && !strcmp(argv[1], "compute"))
		return compute();
	if (argc > 1 && !strcmp(argv[1], "beat"))
		beat();
	for (;;)
		pause();
}
