/* All that a container needs to show that it ran; with an argument it stays. */
#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	(void)argv;
	puts("hello from a container");
	if (argc > 1)
		pause();
	return 0;
}
