#!/bin/sh
# Loads and unloads the nvidia module as far as a kernel that is not ours allows: it says what modprobe says, and leaves
# the traces that a loaded module leaves. Every other module is kmod's own business.
release=$(uname -r)
remove=
module=
for word; do
	case $word in
	-r | --remove) remove=yes ;;
	nvidia | nvidia-current) module=nvidia ;;
	nvidia[-_]uvm | nvidia[-_]modeset | nvidia[-_]drm) module=nvidia ;;
	nouveau) module=nouveau ;;
	esac
done
[ -n "$module" ] || exec /usr/lib/lab/modprobe "$@"

drop() { # the module's traces
	rm -rf "/sys/module/$1" "/proc/driver/$1" /run/lab-gpus
	rm -f /dev/nvidia* /sys/bus/pci/drivers/"$1"/0* /lab/loaded
	for device in /sys/bus/pci/devices/*; do
		case $(readlink "$device/driver") in */"$1") rm "$device/driver" ;; esac
	done
}
if [ -n "$remove" ]; then
	[ -e "/sys/module/$module" ] || { echo "modprobe: FATAL: Module $module is not currently loaded." >&2; exit 1; }
	[ ! -e /run/lab-busy ] || { echo "modprobe: FATAL: Module $module is in use." >&2; exit 1; }
	drop $module
	exit 0
fi
[ "$module" = nvidia ] || exec /usr/lib/lab/modprobe "$@"
[ -e /sys/module/nvidia ] && exit 0
file=nvidia # Debian's own driver calls it nvidia-current
modinfo -k "$release" "$file" >/dev/null 2>&1 || file=nvidia-current
if ! version=$(modinfo -k "$release" -F version "$file" 2>/dev/null); then
	echo "modprobe: FATAL: Module nvidia not found in directory /lib/modules/$release" >&2
	exit 1
fi
if [ -e /lab-secure-boot ]; then
	case $(modinfo -k "$release" -F signer "$file") in
	'') echo "[    9.7] Loading of unsigned module is rejected" >>/run/lab-dmesg ;;
	*) echo "[    9.7] Loading of module with unavailable key is rejected" >>/run/lab-dmesg ;;
	esac
	echo "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service" >&2
	exit 1
fi
licence=$(modinfo -k "$release" -F license "$file")
refuses() { # the driver does not take this GPU, and says so as the kernel's log has it: address
	id=$(($(cat "$1/device")))
	branch=${version%%.*}
	case $licence in *MIT*) open=yes ;; *) open= ;; esac
	# Before Turing, from Hopper on, from Blackwell on.
	if [ $id -lt $((0x1e00)) ] && [ "$branch" -ge 590 ]; then
		why="is supported through the NVIDIA 580.xx Legacy drivers."
	elif [ $id -lt $((0x1e00)) ] && [ $open ]; then
		why="is not supported by open nvidia.ko because it does not include the required GPU System Processor (GSP)."
	elif [ $id -ge $((0x2300)) ] && [ "$branch" -lt 525 ]; then
		why="is not supported by the NVIDIA $version driver release."
	elif [ $id -ge $((0x2900)) ] && [ -z "$open" ]; then
		why="requires use of the NVIDIA open kernel modules."
	else
		return 1
	fi
	at="[    9.8] NVRM:"
	printf '%s The NVIDIA GPU %s (PCI ID: 10de:%04x)\n%s installed in this system %s\n' \
		"$at" "${1##*/}" $id "$at" "$why" >>/run/lab-dmesg
}
gpus=0
mkdir -p /sys/bus/pci/drivers/nvidia
for device in /sys/bus/pci/devices/*; do
	case $(cat "$device/vendor" "$device/class" 2>/dev/null | tr '\n' ' ') in
	"0x10de 0x0300"* | "0x10de 0x0302"*) ;;
	*) continue ;;
	esac
	[ -e "$device/driver" ] && continue
	refuses "$device" && continue
	ln -s ../../drivers/nvidia "$device/driver"
	ln -s "../../devices/${device##*/}" "/sys/bus/pci/drivers/nvidia/${device##*/}"
	mknod -m 666 /dev/nvidia$gpus c 195 $gpus
	gpus=$((gpus + 1))
done
if [ $gpus = 0 ]; then
	echo "modprobe: ERROR: could not insert 'nvidia': No such device" >&2
	exit 1
fi
mknod -m 666 /dev/nvidiactl c 195 255
mkdir -p /sys/module/nvidia/holders /proc/driver/nvidia
echo "$version" > /sys/module/nvidia/version
echo 0 > /sys/module/nvidia/refcnt
echo live > /sys/module/nvidia/initstate
case $licence in
*MIT*) kind="Open Kernel Module for x86_64  $version  Release Build  (dvs-builder@lab)" ;;
*) kind="x86_64 Kernel Module  $version" ;;
esac
echo "NVRM version: NVIDIA UNIX $kind  Tue Jun  9 20:03:14 UTC 2026" > /proc/driver/nvidia/version
echo $gpus > /run/lab-gpus
