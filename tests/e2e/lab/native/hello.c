/* All that a container needs to show that it ran. */
#include <stdio.h>

int main(void)
{
	puts("hello from a container");
	return 0;
}
