/* A kernel module with the driver's name, version, aliases and one file of its own; it drives nothing. */
#include <linux/module.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include <linux/string.h>

static struct proc_dir_entry *folder;

static int show_version(struct seq_file *file, void *unused)
{
	bool open = strcmp(LAB_LICENSE, "Dual MIT/GPL") == 0;

	seq_printf(file, "NVRM version: NVIDIA UNIX %s  " LAB_VERSION "  gpunode's tests\n",
		   open ? "Open Kernel Module for x86_64" : "x86_64 Kernel Module");
	return 0;
}

static int __init nvidia_init(void)
{
	folder = proc_mkdir("driver/nvidia", NULL);
	if (!folder)
		return -ENOMEM;
	if (!proc_create_single("version", 0444, folder, show_version)) {
		proc_remove(folder);
		return -ENOMEM;
	}
	return 0;
}

static void __exit nvidia_exit(void)
{
	proc_remove(folder);
}

module_init(nvidia_init);
module_exit(nvidia_exit);
MODULE_LICENSE(LAB_LICENSE);
MODULE_VERSION(LAB_VERSION);
MODULE_DESCRIPTION("stand-in for the NVIDIA driver");
MODULE_ALIAS("pci:v000010DEd*sv*sd*bc03sc00i00*");
MODULE_ALIAS("pci:v000010DEd*sv*sd*bc03sc02i00*");
