/* The node's kernel release for every program in it: a chroot shares the kernel of the machine that runs the tests. */
#include <string.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

int uname(struct utsname *name)
{
	int status = syscall(SYS_uname, name);

	if (status == 0)
		strcpy(name->release, RELEASE);
	return status;
}
